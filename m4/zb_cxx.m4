# SPDX-License-Identifier: MIT
# ZB_CHECK_CXX: a C++17 compiler is needed for the emulation of CUDA in the tests
# only.
AC_DEFUN([ZB_CHECK_CXX], [
  AC_REQUIRE([AC_PROG_CXX])
  zb_cxx=no
  AC_LANG_PUSH([C++])
  zb_save_CXXFLAGS=$CXXFLAGS
  CXXFLAGS="$CXXFLAGS -std=c++17"
  AC_MSG_CHECKING([whether $CXX compiles C++17])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <map>
#include <thread>]], [[std::map<int, int> m; auto [at, is_new] = m.emplace(1, 2);
return is_new && at->second == 2 ? 0 : 1;]])],
    [zb_cxx=yes])
  AC_MSG_RESULT([$zb_cxx])
  CXXFLAGS=$zb_save_CXXFLAGS
  AC_LANG_POP([C++])
  AM_CONDITIONAL([HAVE_CXX], [test "x$zb_cxx" = xyes])
])
