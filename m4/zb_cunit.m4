# SPDX-License-Identifier: MIT
AC_DEFUN([ZB_CHECK_CUNIT], [
  zb_cunit=no
  AC_CHECK_HEADER([CUnit/Basic.h], [AC_CHECK_LIB([cunit], [CU_initialize_registry], [zb_cunit=yes CUNIT_LIBS=-lcunit])])
  AC_SUBST([CUNIT_LIBS])
  AM_CONDITIONAL([HAVE_CUNIT], [test "x$zb_cunit" = xyes])
])
AC_DEFUN([ZB_WARNINGS], [
  WARN_CFLAGS=
  m4_foreach_w([zb_flag], [-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wvla -Wundef -Wpointer-arith], [
    zb_save_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS -Werror zb_flag"
    AC_MSG_CHECKING([whether $CC accepts zb_flag])
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM], [WARN_CFLAGS="$WARN_CFLAGS zb_flag"; AC_MSG_RESULT([yes])], [AC_MSG_RESULT([no])])
    CFLAGS=$zb_save_CFLAGS])
  # clang warns of each loop that it does not vectorise; that is no mistake.
  AC_MSG_CHECKING([whether $CC has -Wpass-failed])
  zb_save_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS -Werror -Wpass-failed"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM],
    [WARN_CFLAGS="$WARN_CFLAGS -Wno-pass-failed"; AC_MSG_RESULT([yes])], [AC_MSG_RESULT([no])])
  CFLAGS=$zb_save_CFLAGS
  AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [treat warnings as errors])], [], [enable_werror=no])
  AS_IF([test "x$enable_werror" = xyes], [WARN_CFLAGS="$WARN_CFLAGS -Werror"])
  # The tests' C++.
  WARN_CXXFLAGS="-Wall -Wextra -Wshadow"
  AS_IF([test "x$enable_werror" = xyes], [WARN_CXXFLAGS="$WARN_CXXFLAGS -Werror"])
  AC_SUBST([WARN_CXXFLAGS])
  AC_SUBST([WARN_CFLAGS])
])
