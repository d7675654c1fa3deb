/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "conf/conf_int.h"

#include <string.h>

#define AT(member) offsetof(struct zb_conf, member)

/* Counts that nothing limits but memory: exact as double and far from
 * overflowing int64_t in products. */
#define HUGE_COUNT 1e12
#define MANY 1e30

static const struct zb_conf_choice init_choices[] = {
    {"random", ZB_CONF_INIT_RANDOM, NULL},
    {"pretrained", ZB_CONF_INIT_PRETRAINED, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice format_choices[] = {
    {"auto", ZB_CONF_FORMAT_AUTO, NULL},
    {"text", ZB_CONF_FORMAT_TEXT, NULL},
    {"tokens", ZB_CONF_FORMAT_TOKENS, NULL},
    {"npy", ZB_CONF_FORMAT_NPY, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice sp_mode_choices[] = {
    {"all_to_all", ZB_CONF_SP_ALL_TO_ALL, NULL},
    {"ring_attn", ZB_CONF_SP_RING_ATTN, NULL},
    {"split_gather", ZB_CONF_SP_SPLIT_GATHER, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice pp_style_choices[] = {
    {"zbv", ZB_CONF_PP_ZBV, NULL},
    {"1f1b", ZB_CONF_PP_1F1B, NULL},
    {"interleaved", ZB_CONF_PP_INTERLEAVED, NULL},
    {"gpipe", ZB_CONF_PP_GPIPE, NULL},
    {"zb-h1", ZB_CONF_PP_ZB_H1, NULL},
    {"zb-h2", ZB_CONF_PP_ZB_H2, NULL},
    {"v-half", ZB_CONF_PP_V_HALF, NULL},
    {"v-min", ZB_CONF_PP_V_MIN, NULL},
    {"get_v_schedule", ZB_CONF_PP_GET_V_SCHEDULE, NULL},
    {"pytorch-zbv", ZB_CONF_PP_PYTORCH_ZBV, NULL},
    {"dualpipev", ZB_CONF_PP_DUALPIPEV, NULL},
    {"auto", ZB_CONF_PP_AUTO, NULL},
    {"file", ZB_CONF_PP_FILE, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice partition_choices[] = {
    {"auto", ZB_CONF_PARTITION_AUTO, NULL},
    {"uniform", ZB_CONF_PARTITION_UNIFORM, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice p2p_choices[] = {
    {"auto", ZB_CONF_P2P_AUTO, NULL},
    {"nccl", ZB_CONF_P2P_NCCL, NULL},
    {"copy", ZB_CONF_P2P_COPY, NULL},
    {"host", ZB_CONF_P2P_HOST, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice collectives_choices[] = {
    {"auto", ZB_CONF_COLLECTIVES_AUTO, NULL},
    {"nccl", ZB_CONF_COLLECTIVES_NCCL, NULL},
    {"copy", ZB_CONF_COLLECTIVES_COPY, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice costs_choices[] = {
    {"model", ZB_CONF_COSTS_MODEL, NULL},
    {"measured", ZB_CONF_COSTS_MEASURED, NULL},
    {"given", ZB_CONF_COSTS_GIVEN, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice objective_choices[] = {
    {"step", ZB_CONF_OBJECTIVE_STEP, NULL},
    {"steady", ZB_CONF_OBJECTIVE_STEADY, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice optimizer_choices[] = {
    {"adamw", ZB_CONF_ADAMW, NULL},
    {"sgd", ZB_CONF_SGD, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice lr_schedule_choices[] = {
    {"constant", ZB_CONF_LR_CONSTANT, NULL},
    {"cosine", ZB_CONF_LR_COSINE, NULL},
    {"linear", ZB_CONF_LR_LINEAR, NULL},
    {"wsd", ZB_CONF_LR_WSD, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice precision_choices[] = {
    {"auto", ZB_CONF_DTYPE_AUTO, NULL},
    {"fp32", ZB_CONF_FP32, NULL},
    {"bf16", ZB_CONF_BF16, NULL},
    {"fp16", ZB_CONF_FP16, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice recompute_choices[] = {
    {"none", ZB_CONF_RECOMPUTE_NONE, NULL},
    {"selective", ZB_CONF_RECOMPUTE_SELECTIVE, NULL},
    {"full", ZB_CONF_RECOMPUTE_FULL, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice loss_average_choices[] = {
    {"token", ZB_CONF_LOSS_TOKEN, NULL},
    {"microbatch", ZB_CONF_LOSS_MICROBATCH, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice on_error_choices[] = {
    {"continue", ZB_CONF_SAVE_CONTINUE, NULL},
    {"stop", ZB_CONF_SAVE_STOP, NULL},
    {NULL, 0, NULL},
};

static const struct zb_conf_choice resume_choices[] = {
    {"auto", ZB_CONF_RESUME_AUTO, NULL},
    {"never", ZB_CONF_RESUME_NEVER, NULL},
    {NULL, 0, NULL},
};

/* Row builders: the fields every row has, in one line. */
#define ROW(section_, name_, kind_, def_)                                      \
    .section = #section_, .name = #name_, .kind = ZB_OPT_##kind_,              \
    .offset = AT(section_.name_), .def = (def_)
#define RANGE(lo_, hi_) .lo = (lo_), .hi = (hi_)
#define FIELD(name_, help_)                                                    \
    {                                                                          \
        ROW(data, name_, PATH, ""), .help = "Array data: " help_               \
    }
#define LATER(name_)                                                           \
    {                                                                          \
        ROW(data, name_, PATH, ""),                                            \
            .missing = "this field of array data", .idle = "",                 \
            .help = "Array data: the file of field " #name_ "."                \
    }
static const struct zb_conf_opt table[] = {
    {ROW(model, path, PATH, ""),
     .help = "Hugging Face directory with config.json and, for init = "
             "pretrained, weights. Without it the model is described by "
             "model_type and the keys of that family's config.json."},
    {ROW(model, model_type, STRING, ""),
     .help = "Family of a model described here, such as llama; zbrun "
             "--list-models names all. Its other keys follow as in "
             "config.json, values as JSON."},
    {ROW(model, init, ENUM, "random"), .choices = init_choices,
     .help = "Where the first parameters come from: drawn from train.seed, or "
             "read from the weights in model.path."},
    {ROW(model, init_std, DOUBLE, ""), RANGE(0, 100),
     .help = "Standard deviation of random parameters; unset: the family's "
             "initializer_range, else 0.02."},

    {ROW(model, freeze, WORDS, ""),
     .help = "Parameters that are not trained: names of tensors, or patterns "
             "with * and ?."},
    {ROW(model, lora_rank, INT, "0"), RANGE(0, 65536), .word = "none",
     .help = "Train low-rank adapters of this rank instead of the model, whose "
             "weights are those in model.path; a checkpoint then is what "
             "PEFT loads."},
    {ROW(model, lora_alpha, DOUBLE, "8"), RANGE(0, 1e6), .lo_open = 1,
     .help = "What an adapter adds is multiplied by lora_alpha / lora_rank."},
    {ROW(model, lora_targets, WORDS, ""),
     .help = "The linear layers that have adapters, by the last part of their "
             "name; unset: those that PEFT takes (doc/models.md)."},

    {ROW(data, train, PATHS, ""),
     .help = "Files to train on, one after the other; or a folder of array "
             "data."},
    {ROW(data, valid, PATHS, ""), .help = "Files to evaluate on, or a folder "
                                          "of array data."},
    {ROW(data, format, ENUM, "auto"), .choices = format_choices,
     .help = "What the files hold; auto looks at their first bytes, "
             "then at their names (zbprep.1). npy: array data, which auto "
             "finds in folders and where a field's file is named."},
    {ROW(data, tokenizer, PATH, "byte"), .word = "byte",
     .help = "How text becomes tokens: byte (a token is a byte) or the path of "
             "a tokenizer.json."},
    {ROW(data, seq_len, INT, "256"), RANGE(1, 1 << 24),
     .help = "Targets per sample; a sample is seq_len + 1 tokens and the next "
             "one starts seq_len tokens later."},
    {ROW(data, shuffle, BOOL, "true"),
     .help = "Take the samples of data.train in an order drawn from (seed, "
             "epoch); otherwise in file order."},
    FIELD(input_ids,
          "the .npy file of tokens to train on, a row for each sample; their "
          "length is seq_len. Instead of naming files here train may be a "
          "folder in which they are FIELD.npy; valid always is."),
    FIELD(attention_mask, "1 where a token counts, 0 where a row is padded; "
                          "unset: all count."),
    FIELD(token_type_ids, "the part of the input a token belongs to; unset: "
                          "0."),
    LATER(position_ids),
    LATER(inputs_embeds),
    LATER(decoder_input_ids),
    LATER(pixel_values),
    LATER(input_features),
    FIELD(labels,
          "what a token is to become, -100 for nothing, or one number for each "
          "row; a model that predicts the next token is scored at token t "
          "against label t + 1, and without this file has its input as "
          "labels."),
    FIELD(next_sentence_label,
          "of BertForPreTraining, for each row whether its second part is not "
          "what follows the first."),

    {ROW(parallel, pp_size, INT, "1"), RANGE(1, 1024),
     .help = "Pipeline stages."},
    {ROW(parallel, tp_size, INT, "1"), RANGE(1, 1024),
     .help = "Devices that share each layer (tensor parallel)."},
    {ROW(parallel, sp_size, INT, "1"), RANGE(1, 1024),
     .help = "Devices that share each sequence (sequence parallel)."},
    {ROW(parallel, enable_sequence_parallelism, BOOL, "false"),
     .help = "Use sequence parallelism; true by default when sp_size > 1 or "
             "the mode is split_gather."},
    {ROW(parallel, sequence_parallelism_mode, ENUM, "all_to_all"),
     .choices = sp_mode_choices,
     .help = "How: all_to_all and ring_attn use sp_size devices of their own, "
             "split_gather those of tp_size (sp_size = 1)."},
    {ROW(parallel, zero_stage, INT, "1"), RANGE(0, 1),
     .help = "1: optimizer state is cut over the data parallel devices; 0: "
             "each has all of it. The same when there is only one."},
    {ROW(parallel, pp_style, ENUM, "zbv"), .choices = pp_style_choices,
     .help = "The pipeline schedule; auto: the one with the shortest planned "
             "step."},
    {ROW(parallel, scheduler_nodes, PATH, ""),
     .help = "The schedule file for pp_style = file."},
    {ROW(parallel, num_model_chunks, INT, "auto"), RANGE(0, 64), .word = "auto",
     .help = "Pieces of the model on each stage; auto: as pp_style implies, 2 "
             "for a V; interleaved takes 2 or more."},
    {ROW(parallel, num_microbatches, INT, "auto"), RANGE(0, 65536),
     .word = "auto",
     .help = "Microbatches per step and data parallel replica; auto: 2 * "
             "pp_size."},
    {ROW(parallel, microbatch_size, INT, "1"), RANGE(1, 1 << 20),
     .help = "Samples per microbatch."},
    {ROW(parallel, partition, ENUM, "auto"), .choices = partition_choices,
     .help = "How layers are cut into chunks: for the shortest step, or evenly "
             "by number."},
    {ROW(parallel, num_layers_per_stage, INTS, ""), RANGE(0, 1 << 20),
     .help = "Layers of each chunk, in model order; instead of partition."},
    {ROW(parallel, enable_metadata_cache, BOOL, "true"),
     .help = "Receivers reuse the shapes of a boundary until they change."},
    {ROW(parallel, overlap_p2p, BOOL, "true"),
     .help = "Hand tensors over while the device goes on computing."},
    {ROW(parallel, p2p, ENUM, "auto"), .choices = p2p_choices,
     .help = "What carries tensors between stages: copies into the receiver's "
             "memory, or through the host's; NCCL, where every device has a GPU "
             "to itself; auto: what a test at the start finds, and where memory "
             "is shared nothing."},
    {ROW(parallel, collectives, ENUM, "auto"), .choices = collectives_choices,
     .help = "What carries sums and gatherings of tensor, sequence and data "
             "parallelism: kernels that read the memory of other GPUs; NCCL, "
             "where every device has a GPU to itself; auto: NCCL with p2p = "
             "nccl. Results are the same, bit for bit."},
    {ROW(parallel, overlap_communication, BOOL, "true"),
     .help = "Reduce gradients while the step goes on (data parallel)."},
    {ROW(parallel, overlap_allgather, BOOL, "true"),
     .help = "Gather parameters while the next step begins (data parallel)."},
    {ROW(parallel, find_unused_parameters, BOOL, "false"),
     .help = "Report parameters without a path to the loss by name."},
    {ROW(parallel, make_vocab_size_divisible_by, INT, "64"), RANGE(1, 1 << 20),
     .help = "The vocabulary is padded to a multiple of this times tp_size; "
             "nothing is padded when tp_size is 1."},

    {ROW(schedule, costs, ENUM, "model"), .choices = costs_choices,
     .help = "Times of F, B and W for the planner: estimated from the model "
             "(operations and bytes over the devices' rates), measured layer "
             "by layer on the devices before planning, or given below."},
    {ROW(schedule, cost_cache, PATH, "auto"), .word = "auto",
     .help = "Folder where measured times are kept from run to run, or none; "
             "auto: zbrun in the user's cache folder."},
    {ROW(schedule, f_cost, DOUBLES, ""), RANGE(0, MANY), .lo_open = 1,
     .help = "Time of F: one value, or one per chunk in model order."},
    {ROW(schedule, b_cost, DOUBLES, ""), RANGE(0, MANY), .lo_open = 1,
     .help = "Time of B: one value, or one per chunk in model order."},
    {ROW(schedule, w_cost, DOUBLES, ""), RANGE(0, MANY),
     .help = "Time of W: one value, or one per chunk in model order."},
    {ROW(schedule, c_cost, DOUBLES, ""), RANGE(0, MANY),
     .help = "Time of a message between stages: one value, or one per chunk "
             "in model order (all equal; others are not yet built)."},
    {ROW(schedule, max_mem, MEM, ""), RANGE(0, MANY), .lo_open = 1,
     .help = "Activation memory a schedule may hold per device: bytes, or "
             "1.5x for a multiple of 2p times the memory of one F; unset: what "
             "device_mem leaves, else the planner's own default."},
    {ROW(schedule, device_mem, BYTES, "none"), RANGE(0, 1e18), .word = "none",
     .help = "Limit for everything on a device, bytes."},
    {ROW(schedule, sim_unit_us, DOUBLE, "1000"), RANGE(0, 1e9), .lo_open = 1,
     .help = "Backend sim: how long a cost of 1 lasts, microseconds."},
    {ROW(schedule, objective, ENUM, "step"), .choices = objective_choices,
     .help = "What the planner makes short: one step, or steps in a row."},
    {ROW(schedule, budget, I64, "auto"), RANGE(0, HUGE_COUNT), .word = "auto",
     .word_value = -1,
     .help = "Moves the planner's search may try; auto: as many as take 5 % of "
             "the first 100 steps' time at most, 0: none."},
    {ROW(schedule, time_limit_ms, I64, "none"), RANGE(0, HUGE_COUNT),
     .word = "none",
     .help = "Time the planner's search may take, milliseconds. The schedule "
             "then depends on the machine's speed."},

    {ROW(optimizer, name, ENUM, "adamw"), .choices = optimizer_choices,
     .help = "The optimizer."},
    {ROW(optimizer, lr, DOUBLE, "0.001"), RANGE(0, 1e6),
     .help = "Learning rate after the warm-up."},
    {ROW(optimizer, beta1, DOUBLE, "0.9"), RANGE(0, 1), .hi_open = 1,
     .help = "AdamW: decay of the first moment."},
    {ROW(optimizer, beta2, DOUBLE, "0.999"), RANGE(0, 1), .hi_open = 1,
     .help = "AdamW: decay of the second moment."},
    {ROW(optimizer, eps, DOUBLE, "1e-08"), RANGE(0, 1), .lo_open = 1,
     .help = "AdamW: added to the root of the second moment."},
    {ROW(optimizer, weight_decay, DOUBLE, "0.01"), RANGE(0, 1e6),
     .help = "Decoupled weight decay; not for norms and biases."},
    {ROW(optimizer, momentum, DOUBLE, "0"), RANGE(0, 1), .hi_open = 1,
     .help = "SGD: momentum."},
    {ROW(optimizer, max_norm, DOUBLE, "1"), RANGE(0, MANY), .word = "off",
     .help = "Gradients are scaled down to this global norm; 0: never."},
    {ROW(optimizer, lr_schedule, ENUM, "cosine"),
     .choices = lr_schedule_choices,
     .help = "How the learning rate goes from lr to min_lr."},
    {ROW(optimizer, warmup_steps, I64, "0"), RANGE(0, HUGE_COUNT),
     .word = "none", .help = "Steps of linear warm-up."},
    {ROW(optimizer, min_lr, DOUBLE, "0"), RANGE(0, 1e6),
     .help = "Learning rate of the last step."},
    {ROW(optimizer, post_validation, BOOL, "true"),
     .help = "Step at once and check norm and overflow afterwards, with undo; "
             "otherwise wait for the norm first. The result is the same."},

    {ROW(precision, precision, ENUM, "auto"), .choices = precision_choices,
     .help = "Type of parameters and activations; auto: fp32 on cpu, bf16 on "
             "cuda."},
    {ROW(precision, initial_scale, DOUBLE, "65536"), RANGE(0, MANY),
     .lo_open = 1, .help = "fp16: first loss scale."},
    {ROW(precision, min_scale, DOUBLE, "1"), RANGE(0, MANY), .lo_open = 1,
     .help = "fp16: least loss scale; an overflow that would lower it further "
             "ends the run."},
    {ROW(precision, growth_factor, DOUBLE, "2"), RANGE(1, 1e6), .lo_open = 1,
     .help = "fp16: factor of growth."},
    {ROW(precision, backoff_factor, DOUBLE, "0.5"), RANGE(0, 1), .lo_open = 1,
     .hi_open = 1, .help = "fp16: factor after an overflow."},
    {ROW(precision, growth_interval, I64, "1000"), RANGE(1, HUGE_COUNT),
     .help = "fp16: steps without overflow before the scale grows."},
    {ROW(precision, hysteresis, I64, "2"), RANGE(1, HUGE_COUNT),
     .help = "fp16: overflows, counted until the scale grows, before it "
             "falls."},
    {ROW(precision, max_scale, DOUBLE, "4294967296"), RANGE(0, MANY),
     .lo_open = 1, .help = "fp16: greatest loss scale."},

    {ROW(train, steps, I64, "100"), RANGE(0, HUGE_COUNT),
     .help = "Optimizer steps of the whole run."},
    {ROW(train, seed, U64, "0"),
     .help = "Seed of everything drawn: parameters, order, dropout."},
    {ROW(train, eval_interval, I64, "never"), RANGE(0, HUGE_COUNT),
     .word = "never", .help = "Steps between evaluations on data.valid."},
    {ROW(train, eval_batches, I64, "all"), RANGE(0, HUGE_COUNT), .word = "all",
     .help = "Batches of an evaluation."},
    {ROW(train, log_interval, I64, "1"), RANGE(0, HUGE_COUNT), .word = "never",
     .help = "Steps between progress lines; log.jsonl has every step."},
    {ROW(train, recompute, ENUM, "none"), .choices = recompute_choices,
     .help = "What B computes again, with the same bits, instead of F keeping "
             "it: what is cheap, or all of a layer but what enters it. Where "
             "it is not set, pp_style = auto within device_mem or a max_mem in "
             "bytes compares all three."},
    {ROW(train, threads_per_device, INT, "auto"), RANGE(0, 1024),
     .word = "auto",
     .help = "Threads of a cpu device; auto: max(1, cores / devices)."},
    {ROW(train, cuda_graphs, BOOL, "true"),
     .help = "Backend cuda: launch a pass as one CUDA graph when it recurs."},
    {ROW(train, loss_average, ENUM, "token"), .choices = loss_average_choices,
     .help = "Mean over all valid targets of the step, or mean of the means of "
             "the microbatches."},
    {ROW(train, deterministic, BOOL, "true"),
     .help = "The same bits on every run."},
    {ROW(train, watchdog_s, INT, "300"), RANGE(0, 604800), .word = "off",
     .help = "Seconds without any progress after which the run is given up."},

    {ROW(checkpoint, dir, PATH, ""),
     .help = "Folder of checkpoints, which are step-N in it; unset: nothing is "
             "saved. With it, the end of the run is."},
    {ROW(checkpoint, interval, I64, "never"), RANGE(0, HUGE_COUNT),
     .word = "never",
     .help = "Steps between checkpoints, beside that of the end."},
    {ROW(checkpoint, keep, INT, "3"), RANGE(0, 1000000), .word = "all",
     .help = "How many checkpoints are kept: the newest."},
    {ROW(checkpoint, resume, ENUM, "auto"), .choices = resume_choices,
     .help = "Go on from the newest good checkpoint in dir, or never."},
    {ROW(checkpoint, on_error, ENUM, "continue"), .choices = on_error_choices,
     .help = "What comes after a checkpoint that could not be written, as on a "
             "full disk. That of the end always ends the run with an error."},
    {ROW(checkpoint, max_file_bytes, BYTES, "5G"), RANGE(0, 1e18),
     .word = "none",
     .help = "Weights beyond this go to further files, with an index."},

    {ROW(output, dir, PATH, "."), .help = "Folder of the files below."},
    {ROW(output, log, PATH, "log.jsonl"), .help = "One JSON object per step."},
    {ROW(output, trace, PATH, ""),
     .help = "Chrome trace of what ran, next to what was planned."},
    {ROW(output, report, PATH, ""),
     .help = "One self-contained HTML page about the run."},
};

const struct zb_conf_opt *zb_conf_table(size_t *n_out)
{
    *n_out = ZB_COUNT_OF(table);
    return table;
}

const struct zb_conf_opt *zb_conf_opt_find(const char *section,
                                           const char *name)
{
    for (size_t i = 0; i < ZB_COUNT_OF(table); i++) {
        if (strcmp(table[i].section, section) == 0 &&
            strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

const char *zb_conf_pp_style_str(int pp_style)
{
    for (const struct zb_conf_choice *c = pp_style_choices; c->name != NULL;
         c++) {
        if (c->value == pp_style) {
            return c->name;
        }
    }
    return "unknown";
}
