# SPDX-License-Identifier: MIT
# ZB_CHECK_NCCL: --with-nccl=DIR|yes|no|check, after ZB_CHECK_CUDA. Without a DIR
# it is looked for in the CUDA toolkit and where the compiler looks. An explicit
# request that fails is an error; "check" degrades. Global CPPFLAGS, LDFLAGS and
# LIBS are restored. 2.18 is the first whose communicators can be finalized and
# asked for errors as the cuda backend does.
AC_DEFUN([ZB_CHECK_NCCL], [
  AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl=DIR],
    [NCCL, for messages between GPUs (default: check)])],
    [], [with_nccl=check])
  zb_nccl=no
  AS_IF([test "x$with_nccl" != xno && test "x$zb_cuda" = xyes], [
    AS_CASE([$with_nccl], [yes|check], [], [
      AS_IF([test ! -f "$with_nccl/include/nccl.h"],
        [AC_MSG_ERROR([there is no $with_nccl/include/nccl.h])])
      CUDA_CPPFLAGS="-isystem $with_nccl/include $CUDA_CPPFLAGS"
      zb_nccl_lib=$with_nccl/lib
      AS_IF([test -d "$with_nccl/lib64"], [zb_nccl_lib=$with_nccl/lib64])
      CUDA_LDFLAGS="-L$zb_nccl_lib -Wl,-rpath,$zb_nccl_lib $CUDA_LDFLAGS"])
    zb_save_CPPFLAGS=$CPPFLAGS zb_save_LDFLAGS=$LDFLAGS zb_save_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS" LDFLAGS="$LDFLAGS $CUDA_LDFLAGS"
    AC_MSG_CHECKING([for NCCL 2.18 or later])
    LIBS="-lnccl $CUDA_LIBS $LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[
#include <nccl.h>
#if NCCL_VERSION_CODE < 21800
#error too old
#endif
]], [[ncclConfig_t c = NCCL_CONFIG_INITIALIZER; ncclComm_t comm;
ncclUniqueId id; return ncclGetUniqueId(&id) != ncclSuccess
  || ncclCommInitRankConfig(&comm, 2, id, 0, &c) != ncclSuccess
  || ncclCommFinalize(comm) != ncclSuccess;]])],
      [zb_nccl=yes CUDA_LIBS="-lnccl $CUDA_LIBS"])
    AC_MSG_RESULT([$zb_nccl])
    CPPFLAGS=$zb_save_CPPFLAGS LDFLAGS=$zb_save_LDFLAGS LIBS=$zb_save_LIBS
  ])
  AS_IF([test "x$zb_nccl" = xno],
    [AS_CASE([$with_nccl], [no|check], [],
      [AC_MSG_ERROR([--with-nccl given but no usable NCCL (and CUDA) was found])])],
    [AC_DEFINE([HAVE_NCCL], [1], [messages by NCCL are built])])
  AM_CONDITIONAL([HAVE_NCCL], [test "x$zb_nccl" = xyes])
])
