# Writes build_info.cc, at every build: the commit may have changed. The file is touched only if its
# text changes. Input: SOURCE_DIR (the repository), TEMPLATE, OUTPUT, and what configuring knows.
set(COMMIT "unknown")
# Not in a tarball's folder that happens to lie inside another repository.
if(EXISTS "${SOURCE_DIR}/.git")
  find_program(GIT git)
  if(GIT)
    # No tag matches, so that this gives the hash; no lock, since others may use git meanwhile.
    execute_process(
      COMMAND "${GIT}" --no-optional-locks describe --always --abbrev=12 --dirty --exclude=*
      WORKING_DIRECTORY "${SOURCE_DIR}"
      OUTPUT_VARIABLE _commit
      RESULT_VARIABLE _result
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_result EQUAL 0)
      set(COMMIT "${_commit}")
    endif()
  endif()
endif()
configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
