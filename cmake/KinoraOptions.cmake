# What can be chosen at configure time. The presets of CMakePresets.json set these.
set(KINORA_CUDA "AUTO" CACHE STRING
    "For NVIDIA GPUs: ON, OFF (the CPU alone), or AUTO (ON where this machine has one)")
set(KINORA_CUDA_ARCHITECTURES "75-real;80-real;86-real;89-real;90a-real;100-real;120-real;120-virtual"
    CACHE STRING "GPU architectures of our own kernels")
set(KINORA_FFMPEG "AUTO" CACHE STRING
    "The module for video files: ON, OFF, or AUTO (ON where FFmpeg's development packages are)")
set(KINORA_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
set(KINORA_BATCH 8 CACHE STRING "How many sources the compiler gets at a time; 1: each alone")
option(KINORA_TESTS "Build the tests" ON)
option(KINORA_FUZZ "Build the parsers as programs of libFuzzer (needs clang)" OFF)
option(KINORA_BENCH "Build the micro-benchmarks" OFF)
# CI has g++ 12. What another compiler warns of must not keep anybody from building.
set(is_known_compiler OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
  set(is_known_compiler ON)
endif()
option(KINORA_WERROR "Warnings are errors in our own code (by default with g++ 12)" ${is_known_compiler})

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(KINORA_CCACHE ccache)
if(KINORA_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${KINORA_CCACHE}")
  # An nvcc from PyPI has another date in each environment.
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_COMPILERCHECK=content
                                   "${KINORA_CCACHE}")
endif()

set(KINORA_WANTS_CUDA "${KINORA_CUDA}")
if(KINORA_CUDA STREQUAL "AUTO")
  execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/gpus.sh" --any RESULT_VARIABLE no_gpu)
  if(no_gpu EQUAL 0)
    set(KINORA_WANTS_CUDA ON)
  else()
    set(KINORA_WANTS_CUDA OFF)
    message(STATUS "Kinora: for the CPU alone, since no NVIDIA GPU is here. To build for GPUs "
                   "elsewhere: make clean build PRESET=cuda")
  endif()
endif()
