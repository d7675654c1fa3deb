# SPDX-License-Identifier: MIT
# ZB_CHECK_FUZZ: whether the compiler has libFuzzer, address and undefined
# behaviour sanitizers (clang with its runtime libraries), and no other sanitizer
# is asked for. FUZZ_CFLAGS for what is fuzzed, FUZZ_LDFLAGS for the programs.
AC_DEFUN([ZB_CHECK_FUZZ], [
FUZZ_CFLAGS='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all'
FUZZ_LDFLAGS='-fsanitize=fuzzer,address,undefined'
zb_fuzz=no
AS_CASE([" $CFLAGS "], [*-fsanitize*], [],
  [AC_CACHE_CHECK([whether $CC has libFuzzer], [zb_cv_fuzz],
    [zb_save_CFLAGS=$CFLAGS
    zb_save_LDFLAGS=$LDFLAGS
    CFLAGS="$CFLAGS $FUZZ_CFLAGS"
    LDFLAGS="$LDFLAGS $FUZZ_LDFLAGS"
    AC_LINK_IFELSE([AC_LANG_SOURCE([[
#include <stddef.h>
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    return data == NULL && n > 0;
}
      ]])], [zb_cv_fuzz=yes], [zb_cv_fuzz=no])
    CFLAGS=$zb_save_CFLAGS
    LDFLAGS=$zb_save_LDFLAGS])
  zb_fuzz=$zb_cv_fuzz])
AM_CONDITIONAL([HAVE_FUZZ], [test "x$zb_fuzz" = xyes])
AC_SUBST([FUZZ_CFLAGS])
AC_SUBST([FUZZ_LDFLAGS])
])
