# One library a room, one test binary a room.

# Builds what `make install` installs.
add_custom_target(kinora_installed)

# Flags of every target of ours.
add_library(kinora_flags INTERFACE)
target_compile_options(
  kinora_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unknown-pragmas
                         -ffp-contract=off>
                         $<$<AND:$<BOOL:${KINORA_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
if(KINORA_SANITIZE)
  # vptr would need the type information of libtorch's hidden classes. g++'s maybe-uninitialized and
  # stringop-overflow are wrong about the standard library under sanitizers.
  target_compile_options(
    kinora_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${KINORA_SANITIZE}
                           -fno-sanitize=vptr -fno-sanitize-recover=all -fno-omit-frame-pointer
                           -Wno-maybe-uninitialized -Wno-stringop-overflow>)
  target_link_options(kinora_flags INTERFACE -fsanitize=${KINORA_SANITIZE})
endif()

# kinora_batches(RESULT TARGET source...)
#
# Sets RESULT to what the compiler is given for these sources of TARGET: files that include up to
# KINORA_BATCH of them each, since most of the time of a source goes into libtorch's headers, which a
# batch reads once. So names in unnamed namespaces are unique within a room. Compiled alone are
# sources with flags of their own, .cu files, and those after the word ALONE: what only some builds
# have, so that all builds have the same batches, which the compiler cache then finds.
# The text of a batch names no folder of this machine, for the same reason.
function(kinora_batches result target)
  cmake_parse_arguments(ARG "" "" "ALONE" ${ARGN})
  set(files ${ARG_ALONE})
  set(text)
  set(count 0)
  set(number 0)
  foreach(source IN LISTS ARG_UNPARSED_ARGUMENTS ITEMS end_of_list)
    if(NOT source STREQUAL "end_of_list")
      get_source_file_property(options "${source}" COMPILE_OPTIONS)
      if(options OR KINORA_BATCH LESS 2 OR NOT source MATCHES "\\.cc$")
        list(APPEND files "${source}")
        continue()
      endif()
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
      string(APPEND text "#include \"${source}\"\n")
      math(EXPR count "${count} + 1")
    endif()
    if(text AND (count EQUAL KINORA_BATCH OR source STREQUAL "end_of_list"))
      set(batch "${CMAKE_CURRENT_BINARY_DIR}/${target}_batch_${number}.cc")
      file(CONFIGURE OUTPUT "${batch}" CONTENT "${text}" @ONLY)
      # A class may hold what is in an unnamed namespace: its file is still the only one that sees it.
      set_source_files_properties("${batch}" PROPERTIES COMPILE_OPTIONS "-Wno-subobject-linkage")
      list(APPEND files "${batch}")
      math(EXPR number "${number} + 1")
      set(text)
      set(count 0)
    endif()
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# kinora_library(ROOM SOURCES a.cc ... [ALONE b.cc ...] HEADERS a.h ... [DEPS kinora::x ...]
#                [PRIVATE_DEPS ...] [HEADER_DEPS ...])
#
# The static library kinora_ROOM with alias kinora::ROOM, which `make install` installs with its
# headers. Every header compiles alone (scripts/lint.py); one for device code only goes under SOURCES
# instead. ALONE: see kinora_batches. HEADER_DEPS: what our sources include and nobody links, so that
# programs that use the installed library need not have it.
function(kinora_library room)
  cmake_parse_arguments(ARG "" "" "SOURCES;ALONE;HEADERS;DEPS;PRIVATE_DEPS;HEADER_DEPS" ${ARGN})
  set(target kinora_${room})
  kinora_batches(files ${target} ${ARG_SOURCES} ALONE ${ARG_ALONE})
  add_library(${target} STATIC ${files})
  add_library(kinora::${room} ALIAS ${target})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}"
                                  FILES ${ARG_HEADERS})
  target_include_directories(${target} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
  target_compile_features(${target} INTERFACE cxx_std_20)
  list(APPEND ARG_HEADER_DEPS kinora_flags)
  list(TRANSFORM ARG_HEADER_DEPS REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>")
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_HEADER_DEPS} ${ARG_PRIVATE_DEPS})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${room})
  install(TARGETS ${target} EXPORT KinoraTargets ARCHIVE DESTINATION lib FILE_SET HEADERS)
  add_dependencies(kinora_installed ${target})
endfunction()

# kinora_install_programs(target...)
#
# Programs and modules, which `make install` puts into bin/: a program looks for modules beside it.
function(kinora_install_programs)
  install(TARGETS ${ARGN} RUNTIME DESTINATION bin LIBRARY DESTINATION bin)
  add_dependencies(kinora_installed ${ARGN})
endfunction()

# kinora_module(NAME SOURCES a.cc ... [LIBRARIES ...] [RUNTIME_DIRS dir ...])
#
# The module kinora_NAME.so beside the program (kinora/core/module_file.h). RUNTIME_DIRS: where it
# finds the shared libraries that it needs.
function(kinora_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;RUNTIME_DIRS" ${ARGN})
  set(target kinora_${name})
  add_library(${target} MODULE ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE ${ARG_LIBRARIES} kinora_flags)
  set_target_properties(${target} PROPERTIES PREFIX "" BUILD_RPATH "${ARG_RUNTIME_DIRS}"
                                             INSTALL_RPATH "${ARG_RUNTIME_DIRS}"
                                             LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
endfunction()

# kinora_test(ROOM SOURCES a_test.cc ... [DEPS ...] [LABELS gpu ...] [SHARDS n] [THREADS n])
#
# The test binary kinora_ROOM_test. CTest runs it as one process, since loading libtorch takes longer
# than most tests, or as n processes of every n-th test, where they take minutes. THREADS are those of
# OpenMP, by default as many as cores: where a room's tensors are tiny, more than one wait for each
# other. Run it where it was built: tests find their fixtures (tests/ROOM/data) through
# tests/places.h.
function(kinora_test room)
  cmake_parse_arguments(ARG "" "SHARDS;THREADS" "SOURCES;DEPS;LABELS" ${ARGN})
  set(target kinora_${room}_test)
  kinora_batches(files ${target} ${ARG_SOURCES})
  add_executable(${target} ${files})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} kinora_flags kinora_test_main)
  # To optimise a test takes longer than it gains. Sanitizers make what a test computes slower.
  if(NOT KINORA_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  set(threads)
  if(ARG_THREADS)
    set(threads "OMP_NUM_THREADS=${ARG_THREADS};")
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(name ${room})
    if(ARG_SHARDS GREATER 1)
      string(APPEND name ".${shard}")
    endif()
    add_test(NAME ${name} COMMAND ${target})
    math(EXPR index "${shard} - 1")
    # Waiting threads leave the processor to the tests beside them. scripts/test.sh reads the reports.
    set_tests_properties(
      ${name} PROPERTIES TIMEOUT 1800 LABELS "${ARG_LABELS}" ENVIRONMENT
      "OMP_WAIT_POLICY=passive;${threads}GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index};\
GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/reports/${name}.xml")
  endforeach()
endfunction()

# kinora_bench(ROOM SOURCES a_bench.cc ... [DEPS ...])
#
# The micro-benchmarks kinora_ROOM_bench (Google Benchmark); `make bench` runs them all.
function(kinora_bench room)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  set(target kinora_${room}_bench)
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} kinora_flags benchmark::benchmark
                                          benchmark::benchmark_main)
endfunction()
