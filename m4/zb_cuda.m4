# SPDX-License-Identifier: MIT
# ZB_CHECK_CUDA: --with-cuda=DIR|yes|no|check. An explicit request that fails is
# an error; "check" degrades. Without a DIR the toolkit is $CUDA_HOME, that of
# the nvcc on PATH, or /usr/local/cuda. Global CPPFLAGS, LDFLAGS and LIBS are
# restored.
#
# ZB_GENCODE: code for each kind of GPU from Ampere to Blackwell that the
# toolkit knows, of close relatives for the oldest only; and what later ones
# compile for themselves.
AC_DEFUN([ZB_GENCODE], [
  AC_MSG_CHECKING([which GPUs to compile for])
  zb_known=`"$NVCC" --list-gpu-arch 2>/dev/null`
  NVCC_GENCODE= zb_last=
  for zb_arch in 80 86 89 90 100 120; do
    AS_CASE([" "`echo $zb_known`" "], [*" compute_$zb_arch "*], [
      NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$zb_arch,code=sm_$zb_arch"
      zb_last=$zb_arch])
  done
  AS_IF([test -n "$zb_last"], [
    NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$zb_last,code=compute_$zb_last"
  ], [NVCC_GENCODE="-arch=sm_80"])
  AC_MSG_RESULT([$NVCC_GENCODE])
])

AC_DEFUN([ZB_CHECK_CUDA], [
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AC_ARG_VAR([NVCC_GENCODE], [nvcc -gencode flags])
  AC_ARG_VAR([CUDA_HOME], [CUDA toolkit, when --with-cuda names none])
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR], [CUDA toolkit (default: check)])],
    [], [with_cuda=check])
  zb_cuda=no zb_cuda_dir=
  AS_CASE([$with_cuda],
    [no], [],
    [yes|check], [
      AS_IF([test -n "$CUDA_HOME"], [zb_cuda_dir=$CUDA_HOME],
        [zb_nvcc=`command -v nvcc`], [zb_cuda_dir=${zb_nvcc%/bin/nvcc}],
        [test -d /usr/local/cuda], [zb_cuda_dir=/usr/local/cuda])],
    [zb_cuda_dir=$with_cuda])
  AS_IF([test "x$with_cuda" != xno], [
    AS_IF([test -n "$zb_cuda_dir"], [
      CUDA_CPPFLAGS="-isystem $zb_cuda_dir/include"
      CUDA_LDFLAGS="-L$zb_cuda_dir/lib64 -Wl,-rpath,$zb_cuda_dir/lib64"])
    AC_PATH_PROG([NVCC], [nvcc], [], [$zb_cuda_dir/bin$PATH_SEPARATOR$PATH])
    zb_save_CPPFLAGS=$CPPFLAGS zb_save_LDFLAGS=$LDFLAGS zb_save_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS" LDFLAGS="$LDFLAGS $CUDA_LDFLAGS"
    AS_IF([test -n "$NVCC"], [
      AC_CHECK_HEADER([cuda_runtime.h], [
        AC_CHECK_HEADER([cublasLt.h], [
          AC_CHECK_LIB([cudart], [cudaGetDeviceCount], [
            AC_CHECK_LIB([cublasLt], [cublasLtCreate],
              [zb_cuda=yes CUDA_LIBS="-lcublasLt -lcudart"])])])])])
    CPPFLAGS=$zb_save_CPPFLAGS LDFLAGS=$zb_save_LDFLAGS LIBS=$zb_save_LIBS
    AS_IF([test "x$zb_cuda" = xno && test "x$with_cuda" != xcheck],
      [AC_MSG_ERROR([--with-cuda given but no usable CUDA toolkit was found])])
  ])
  AS_IF([test "x$zb_cuda" = xyes], [AC_DEFINE([HAVE_CUDA], [1], [CUDA backend is built])])
  AS_IF([test "x$zb_cuda" = xyes && test -z "$NVCC_GENCODE"], [ZB_GENCODE])
  : ${NVCCFLAGS="-O2 -Xcompiler -fno-exceptions,-fno-rtti,-fno-threadsafe-statics"}
  AC_ARG_VAR([NVCCFLAGS], [nvcc flags])
  AC_SUBST([CUDA_CPPFLAGS]) AC_SUBST([CUDA_LDFLAGS]) AC_SUBST([CUDA_LIBS])
  AM_CONDITIONAL([HAVE_CUDA], [test "x$zb_cuda" = xyes])
])
