# SPDX-License-Identifier: MIT
# ZB_CHECK_ONEDNN: --with-onednn[=yes|no|DIR]. oneDNN does every matrix product
# of the cpu backend; without it plain loops do, 20 to 50 times slower, so its
# absence must be asked for. Debian's package has no .pc file.
AC_DEFUN([ZB_CHECK_ONEDNN], [
  AC_ARG_WITH([onednn], [AS_HELP_STRING([--with-onednn=yes|no|DIR],
    [oneDNN for matrix products (default: yes)])], [], [with_onednn=yes])
  zb_onednn=no
  AS_IF([test "x$with_onednn" != xno], [
    AS_CASE([$with_onednn], [yes], [], [
      ONEDNN_CPPFLAGS="-isystem $with_onednn/include"
      ONEDNN_LIBS="-L$with_onednn/lib"])
    ONEDNN_LIBS="$ONEDNN_LIBS -ldnnl"
    zb_save_CPPFLAGS=$CPPFLAGS zb_save_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS $ONEDNN_CPPFLAGS" LIBS="$ONEDNN_LIBS $LIBS"
    AC_CHECK_HEADER([oneapi/dnnl/dnnl.h], [
      AC_CHECK_FUNC([dnnl_engine_create], [zb_onednn=yes])])
    CPPFLAGS=$zb_save_CPPFLAGS LIBS=$zb_save_LIBS
    AS_IF([test "x$zb_onednn" = xno], [AC_MSG_ERROR([oneDNN was not found.
Run scripts/bootstrap, which installs it, install libdnnl-dev, or configure
with --without-onednn for slow plain loops.])])
  ])
  AS_IF([test "x$zb_onednn" = xyes],
    [AC_DEFINE([HAVE_ONEDNN], [1], [oneDNN does the matrix products])])
  AC_SUBST([ONEDNN_CPPFLAGS]) AC_SUBST([ONEDNN_LIBS])
])

# ZB_NATIVE: --enable-native (default: yes) compiles for this machine's
# processor; the row kernels gain two to four times from its vector units.
AC_DEFUN([ZB_NATIVE], [
  AC_ARG_ENABLE([native], [AS_HELP_STRING([--disable-native],
    [do not compile for this machine's processor only])],
    [], [enable_native=yes])
  NATIVE_CFLAGS=
  AS_IF([test "x$enable_native" = xyes], [
    zb_save_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS -march=native"
    AC_MSG_CHECKING([whether $CC accepts -march=native])
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM],
      [NATIVE_CFLAGS=-march=native; AC_MSG_RESULT([yes])], [AC_MSG_RESULT([no])])
    CFLAGS=$zb_save_CFLAGS])
  AC_SUBST([NATIVE_CFLAGS])
])
