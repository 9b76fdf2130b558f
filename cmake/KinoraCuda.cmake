# Decides KINORA_HAS_CUDA (libtorch has CUDA: the program can use a GPU) and KINORA_HAS_NVCC (our own
# kernels are built). Without nvcc the same program runs on libtorch's own kernels.
set(KINORA_HAS_CUDA FALSE)
set(KINORA_HAS_NVCC FALSE)
if(NOT KINORA_CUDA STREQUAL "OFF" AND Torch_HAS_CUDA)
  set(KINORA_HAS_CUDA TRUE)
  # The first nvcc of libtorch's CUDA version; Ubuntu's own package is of an older one.
  function(kinora_nvcc_fits result nvcc)
    execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE version ERROR_QUIET)
    if(NOT version MATCHES "release 13\\.")
      set(${result} FALSE PARENT_SCOPE)
    endif()
  endfunction()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(
      KINORA_NVCC nvcc
      HINTS "${KINORA_TORCH_DIR}/../nvidia/cu13/bin" ENV PATH /usr/local/cuda/bin
      VALIDATOR kinora_nvcc_fits)
    if(KINORA_NVCC)
      set(CMAKE_CUDA_COMPILER "${KINORA_NVCC}")
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_ARCHITECTURES "${KINORA_CUDA_ARCHITECTURES}")
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
    # The wheels' nvcc looks for its libraries in lib64, and they have lib.
    set(ENV{LIBRARY_PATH} "${KINORA_TORCH_DIR}/../nvidia/cu13/lib:$ENV{LIBRARY_PATH}")
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # Debian 12's CMake 3.25.1 does not know it yet
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(KINORA_HAS_NVCC TRUE)
  endif()
endif()
if(KINORA_CUDA STREQUAL "ON" AND NOT KINORA_HAS_NVCC)
  message(FATAL_ERROR "KINORA_CUDA=ON, but no nvcc was found (or this libtorch has no CUDA). "
                      "Run scripts/setup.sh --cuda, which installs nvcc from PyPI.")
endif()
message(STATUS "Kinora: libtorch ${Torch_VERSION}, GPU support ${KINORA_HAS_CUDA}, "
               "own CUDA kernels ${KINORA_HAS_NVCC}")

set(CMAKE_BUILD_RPATH "${Torch_RUNTIME_DIRS}")
