/* SPDX-License-Identifier: MIT
 *
 * Messages for people, on standard error.
 *
 *     zb_log(ZB_LOG_INFO, "planned bubble %.1f %%", 100 * bubble);
 *
 * Levels: ERROR the run or command fails; WARN the result may not be what was
 * meant; INFO what a user wants to see once; DEBUG what helps to find a fault.
 *
 * Threads: any; one call writes one whole line.
 */
#ifndef ZB_LOG_H
#define ZB_LOG_H

#include "zb/status.h"

enum zb_log_level { ZB_LOG_ERROR, ZB_LOG_WARN, ZB_LOG_INFO, ZB_LOG_DEBUG };

/* Messages above this level are dropped. The start value is ZB_LOG_INFO.
 * Before the workers start. */
void zb_log_set_level(enum zb_log_level level);

/* Print "zbrun: error: text\n", "zbrun: warning: text\n" or "zbrun: text\n". */
void zb_log(enum zb_log_level level, const char *fmt, ...) ZB_PRINTF(2, 3);

#endif
