# One library a room, one test binary a room.

# Flags of every target of ours.
add_library(kinora_flags INTERFACE)
target_compile_options(
  kinora_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unknown-pragmas
                         -ffp-contract=off>
                         $<$<AND:$<BOOL:${KINORA_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
if(KINORA_SANITIZE)
  # vptr would need the type information of libtorch's hidden classes; g++'s maybe-uninitialized
  # is wrong about the standard library under sanitizers.
  target_compile_options(
    kinora_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${KINORA_SANITIZE}
                           -fno-sanitize=vptr -fno-sanitize-recover=all -fno-omit-frame-pointer
                           -Wno-maybe-uninitialized>)
  target_link_options(kinora_flags INTERFACE -fsanitize=${KINORA_SANITIZE})
endif()

# kinora_library(ROOM SOURCES a.cc ... HEADERS a.h ... [DEPS kinora::x ...] [PRIVATE_DEPS ...])
#
# The static library kinora_ROOM with alias kinora::ROOM. Every header compiles alone
# (target all_verify_interface_header_sets); one for device code only goes under SOURCES instead.
function(kinora_library room)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target kinora_${room})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(kinora::${room} ALIAS ${target})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}"
                                  FILES ${ARG_HEADERS})
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} kinora_flags)
  set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
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
                                             LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
endfunction()

# kinora_test(ROOM SOURCES a_test.cc ... [DEPS ...] [LABELS gpu ...])
#
# The test binary kinora_ROOM_test; CTest sees each TEST of it. Run it where it was built:
# tests find their fixtures through the macro KINORA_TEST_DATA (tests/ROOM/data).
function(kinora_test room)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  set(target kinora_${room}_test)
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} kinora_flags kinora_test_main)
  target_compile_definitions(
    ${target} PRIVATE KINORA_TEST_DATA="${CMAKE_CURRENT_SOURCE_DIR}/data"
                      KINORA_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                      KINORA_BINARY_DIR="${PROJECT_BINARY_DIR}")
  gtest_discover_tests(${target} TEST_PREFIX ${room}. DISCOVERY_MODE PRE_TEST
                       DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 600 LABELS "${ARG_LABELS}")
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
