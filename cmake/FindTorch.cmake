# Finds libtorch without its own CMake package, whose find_package(Torch) fails where no CUDA
# toolkit is installed and overrides the GPU architectures.
#
# Input:   KINORA_TORCH_DIR  folder with include/ and lib/ (the wheel's torch folder, or an unpacked
#                            libtorch), or the environment variable of that name; default: the
#                            private environment that scripts/setup.sh makes.
# Targets: Torch::cpu   libtorch, libtorch_cpu, libc10 and headers
#          Torch::cuda  libtorch_cuda, libc10_cuda and the CUDA runtime (only if KINORA_WANTS_CUDA and
#                       this libtorch has CUDA)
#          Torch::cudart, Torch::cublaslt, Torch::cudnn  the libraries that libtorch uses, without it
# Output:  Torch_FOUND, Torch_VERSION, Torch_HAS_CUDA, Torch_CUDA_INCLUDE_DIR, Torch_RUNTIME_DIRS

if(NOT KINORA_TORCH_DIR AND DEFINED ENV{KINORA_TORCH_DIR})
  set(KINORA_TORCH_DIR "$ENV{KINORA_TORCH_DIR}" CACHE PATH "libtorch's folder")
endif()
if(NOT KINORA_TORCH_DIR)
  file(GLOB _candidates "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  list(LENGTH _candidates _count)
  if(_count GREATER 0)
    list(GET _candidates 0 KINORA_TORCH_DIR)
  endif()
endif()

if(KINORA_TORCH_DIR AND EXISTS "${KINORA_TORCH_DIR}/include/torch/headeronly/version.h")
  file(STRINGS "${KINORA_TORCH_DIR}/include/torch/headeronly/version.h" _version_lines
       REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3"
         Torch_VERSION "${_version_lines}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Torch
  REQUIRED_VARS KINORA_TORCH_DIR Torch_VERSION
  VERSION_VAR Torch_VERSION
  REASON_FAILURE_MESSAGE
    "run Kinora's scripts/setup.sh, or give an unpacked libtorch with -DKINORA_TORCH_DIR=DIR")

if(Torch_FOUND AND NOT TARGET Torch::cpu)
  set(_lib "${KINORA_TORCH_DIR}/lib")
  set(Torch_RUNTIME_DIRS "${_lib}")

  add_library(Torch::cpu INTERFACE IMPORTED)
  target_include_directories(Torch::cpu SYSTEM INTERFACE "${KINORA_TORCH_DIR}/include")
  # ATen's headers then include the operators that they need, one by one, instead of all of them.
  target_compile_definitions(Torch::cpu INTERFACE AT_PER_OPERATOR_HEADERS)
  target_link_libraries(Torch::cpu INTERFACE "${_lib}/libtorch_cpu.so" "${_lib}/libc10.so")
  # torch/nn and what else lies apart from libtorch's other headers.
  add_library(Torch::api INTERFACE IMPORTED)
  target_include_directories(
    Torch::api SYSTEM INTERFACE "${KINORA_TORCH_DIR}/include/torch/csrc/api/include")
  target_link_libraries(Torch::api INTERFACE Torch::cpu)
  # libtorch's libraries export parts of a libstdc++ of their own, of which some crash when called
  # from outside (std::filesystem::remove_all). The system's must be found before them.
  target_link_options(Torch::cpu INTERFACE
                      "SHELL:-Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state")

  # The CUDA runtime: the wheel's nvidia/ folder beside torch/, else a toolkit's.
  get_filename_component(_site "${KINORA_TORCH_DIR}/.." ABSOLUTE)
  set(Torch_HAS_CUDA FALSE)
  if(KINORA_WANTS_CUDA AND EXISTS "${_lib}/libtorch_cuda.so")
    # One pattern at a time: file(GLOB) sorts, and the first that is there counts.
    foreach(_pattern IN ITEMS "${_site}/nvidia/cu13/lib/libcudart.so.13" "${_lib}/libcudart*.so*"
                              "/usr/local/cuda/lib64/libcudart.so.13")
      file(GLOB _cudart "${_pattern}")
      if(_cudart)
        list(GET _cudart 0 _cudart_file)
        break()
      endif()
    endforeach()
    foreach(_include IN ITEMS "${_site}/nvidia/cu13/include" "/usr/local/cuda/include")
      # The wheel of the runtime lacks the crt folder; scripts/setup.sh adds it.
      if(EXISTS "${_include}/cuda_runtime_api.h" AND EXISTS "${_include}/crt/host_defines.h")
        set(Torch_CUDA_INCLUDE_DIR "${_include}")
        break()
      endif()
    endforeach()
    if(_cudart_file AND Torch_CUDA_INCLUDE_DIR)
      set(Torch_HAS_CUDA TRUE)
      get_filename_component(_cudart_dir "${_cudart_file}" DIRECTORY)
      list(APPEND Torch_RUNTIME_DIRS "${_cudart_dir}")
      file(GLOB _nvidia_dirs "${_site}/nvidia/*/lib")
      list(APPEND Torch_RUNTIME_DIRS ${_nvidia_dirs})
      list(REMOVE_DUPLICATES Torch_RUNTIME_DIRS)

      add_library(Torch::cudart INTERFACE IMPORTED)
      target_include_directories(Torch::cudart SYSTEM INTERFACE "${Torch_CUDA_INCLUDE_DIR}")
      target_link_libraries(Torch::cudart INTERFACE "${_cudart_file}")

      # kinora_torch_library(NAME header file...): Torch::NAME, the first of these files that is there.
      function(kinora_torch_library name header)
        foreach(file IN LISTS ARGN)
          cmake_path(GET file PARENT_PATH lib)
          cmake_path(GET lib PARENT_PATH root)
          foreach(include IN ITEMS "${root}/include" "${Torch_CUDA_INCLUDE_DIR}" "/usr/include")
            if(EXISTS "${file}" AND EXISTS "${include}/${header}" AND NOT TARGET Torch::${name})
              add_library(Torch::${name} INTERFACE IMPORTED)
              target_link_libraries(Torch::${name} INTERFACE Torch::cudart "${file}")
              if(NOT include STREQUAL "/usr/include")
                target_include_directories(Torch::${name} SYSTEM INTERFACE "${include}")
              endif()
            endif()
          endforeach()
        endforeach()
        if(NOT TARGET Torch::${name})
          message(FATAL_ERROR "this libtorch has CUDA, but none of these libraries with ${header} "
                              "was found: ${ARGN}. Hint: install torch by scripts/setup.sh.")
        endif()
      endfunction()
      kinora_torch_library(
        cublaslt cublasLt.h "${_site}/nvidia/cu13/lib/libcublasLt.so.13"
        "${_lib}/libcublasLt.so.13" "/usr/local/cuda/lib64/libcublasLt.so.13")
      kinora_torch_library(
        cudnn cudnn.h "${_site}/nvidia/cudnn/lib/libcudnn.so.9" "${_lib}/libcudnn.so.9"
        "/usr/lib/x86_64-linux-gnu/libcudnn.so.9")

      # Nothing of ours names a symbol of libtorch_cuda, whose load registers the CUDA kernels, so
      # the linker must be told to keep it.
      add_library(Torch::cuda INTERFACE IMPORTED)
      target_link_libraries(
        Torch::cuda
        INTERFACE Torch::cpu Torch::cudart "${_lib}/libc10_cuda.so"
                  "-Wl,--push-state,--no-as-needed" "${_lib}/libtorch_cuda.so"
                  "-Wl,--pop-state")
      # libtorch_cuda needs cuDNN, cuBLAS and friends, found at run time through the rpath.
      foreach(_dir IN LISTS Torch_RUNTIME_DIRS)
        target_link_options(Torch::cuda INTERFACE "-Wl,-rpath-link,${_dir}")
      endforeach()
    endif()
  endif()
endif()
