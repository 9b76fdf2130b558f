# What can be chosen at configure time. The presets of CMakePresets.json set these.
set(KINORA_CUDA "AUTO" CACHE STRING "CUDA kernels: ON, OFF, or AUTO (ON where nvcc is found)")
set(KINORA_CUDA_ARCHITECTURES "80-real;86-real;89-real;90a-real;100-real;120-real;120-virtual"
    CACHE STRING "GPU architectures of our own kernels")
set(KINORA_FFMPEG "AUTO" CACHE STRING
    "The module for video files: ON, OFF, or AUTO (ON where FFmpeg's development packages are)")
set(KINORA_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
option(KINORA_TESTS "Build the tests" ON)
option(KINORA_FUZZ "Build the parsers as programs of libFuzzer (needs clang)" OFF)
option(KINORA_BENCH "Build the micro-benchmarks" OFF)
option(KINORA_WERROR "Warnings are errors in our own code" ON)

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
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${KINORA_CCACHE}")
endif()
