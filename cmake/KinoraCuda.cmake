# Decides KINORA_HAS_CUDA (the program can use a GPU: wanted, and libtorch has CUDA), KINORA_HAS_NVCC
# (our own kernels are built) and KINORA_HAS_CUDNN (cuDNN's attention is called directly). Without
# nvcc and cudnn-frontend the same program runs on libtorch's own kernels.
set(KINORA_HAS_CUDA FALSE)
set(KINORA_HAS_NVCC FALSE)
set(KINORA_HAS_CUDNN FALSE)
if(Torch_HAS_CUDA)
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
    # As two words: of "-isystem=DIR" ccache keeps the path, so that no other clone finds the object.
    set(CMAKE_INCLUDE_SYSTEM_FLAG_CUDA "-isystem ")
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
if(KINORA_HAS_CUDA)
  # The headers of the PyPI wheel, which scripts/setup.sh puts beside torch, or any other copy.
  find_path(KINORA_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS "${KINORA_TORCH_DIR}/../include")
  set(KINORA_CUDNN_FRONTEND_VERSION "none")
  if(KINORA_CUDNN_FRONTEND_INCLUDE)
    file(STRINGS "${KINORA_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h" _lines
         REGEX "#define CUDNN_FRONTEND_(MAJOR|MINOR|PATCH)_VERSION ")
    string(REGEX REPLACE ".*MAJOR_VERSION ([0-9]+).*MINOR_VERSION ([0-9]+).*PATCH_VERSION ([0-9]+).*"
                         "\\1.\\2.\\3" KINORA_CUDNN_FRONTEND_VERSION "${_lines}")
  endif()
  # 1.32 also calls the driver and NVRTC, which a program must not need where no GPU is.
  if(KINORA_CUDNN_FRONTEND_VERSION MATCHES "^1\\.18\\.")
    set(KINORA_HAS_CUDNN TRUE)
    add_library(kinora_third_party::cudnn_frontend INTERFACE IMPORTED GLOBAL)
    target_include_directories(kinora_third_party::cudnn_frontend SYSTEM
                               INTERFACE "${KINORA_CUDNN_FRONTEND_INCLUDE}")
    target_compile_definitions(kinora_third_party::cudnn_frontend
                               INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB)
    target_link_libraries(kinora_third_party::cudnn_frontend INTERFACE Torch::cudnn)
  else()
    message(STATUS "Kinora: cudnn-frontend 1.18 is needed for cuDNN's attention, got "
                   "${KINORA_CUDNN_FRONTEND_VERSION}; scripts/setup.sh installs it")
  endif()
endif()
message(STATUS "Kinora: libtorch ${Torch_VERSION}, GPU support ${KINORA_HAS_CUDA}, "
               "own CUDA kernels ${KINORA_HAS_NVCC}, cuDNN's attention ${KINORA_HAS_CUDNN}")

set(CMAKE_BUILD_RPATH "${Torch_RUNTIME_DIRS}")
set(CMAKE_INSTALL_RPATH "${Torch_RUNTIME_DIRS}")
