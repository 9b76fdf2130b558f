# Third-party libraries (docs/dependencies.md): static or header-only, so that the program runs on
# another Linux machine that has only the same libtorch.
include(KinoraLinked)

# What scripts/setup.sh has installed since, as a video library, is found by the next build.
set(changes "${PROJECT_SOURCE_DIR}/.cache/setup-changes")
if(EXISTS "${changes}")
  set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${changes}")
endif()

find_package(CLI11 CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
kinora_static_dependency(xxhash xxhash.h)
kinora_static_dependency(stb stb/stb_image.h)

# libtiff, shared, for the module that reads TIFF; may be missing.
find_path(KINORA_tiff_INCLUDE tiffio.h)
find_library(KINORA_tiff tiff)
if(KINORA_tiff_INCLUDE AND KINORA_tiff)
  add_library(kinora_third_party::tiff INTERFACE IMPORTED GLOBAL)
  target_include_directories(kinora_third_party::tiff SYSTEM INTERFACE "${KINORA_tiff_INCLUDE}")
  target_link_libraries(kinora_third_party::tiff INTERFACE "${KINORA_tiff}")
else()
  message(STATUS "Kinora: no libtiff; TIFF cannot be read (scripts/setup.sh)")
endif()

# Arrow C++ from the wheel of pyarrow, for the module that reads Parquet; may be missing.
file(GLOB KINORA_PYARROW_FOUND "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow")
if(NOT KINORA_PYARROW_DIR)  # as found before it was installed
  unset(KINORA_PYARROW_DIR CACHE)
endif()
set(KINORA_PYARROW_DIR "${KINORA_PYARROW_FOUND}" CACHE PATH "The package pyarrow, for Parquet")
file(GLOB KINORA_ARROW_LIBRARY "${KINORA_PYARROW_DIR}/libarrow.so.*")
file(GLOB KINORA_PARQUET_LIBRARY "${KINORA_PYARROW_DIR}/libparquet.so.*")
if(KINORA_ARROW_LIBRARY AND KINORA_PARQUET_LIBRARY
   AND EXISTS "${KINORA_PYARROW_DIR}/include/parquet/arrow/reader.h")
  add_library(kinora_third_party::arrow INTERFACE IMPORTED GLOBAL)
  target_include_directories(kinora_third_party::arrow SYSTEM
                             INTERFACE "${KINORA_PYARROW_DIR}/include")
  target_link_libraries(kinora_third_party::arrow INTERFACE "${KINORA_PARQUET_LIBRARY}"
                                                            "${KINORA_ARROW_LIBRARY}")
else()
  message(STATUS "Kinora: no pyarrow; Parquet cannot be read (scripts/setup.sh --parquet)")
endif()

# FFmpeg, shared, for the module that reads and writes video files; may be missing.
if(NOT KINORA_FFMPEG STREQUAL "OFF")
  find_path(KINORA_ffmpeg_INCLUDE libavformat/avformat.h)
  set(KINORA_FFMPEG_LIBRARIES)
  foreach(library IN ITEMS avformat avcodec swscale avutil)
    find_library(KINORA_ffmpeg_${library} ${library})
    list(APPEND KINORA_FFMPEG_LIBRARIES "${KINORA_ffmpeg_${library}}")
  endforeach()
  if(KINORA_ffmpeg_INCLUDE AND NOT KINORA_FFMPEG_LIBRARIES MATCHES "NOTFOUND")
    add_library(kinora_third_party::ffmpeg INTERFACE IMPORTED GLOBAL)
    target_include_directories(kinora_third_party::ffmpeg SYSTEM
                               INTERFACE "${KINORA_ffmpeg_INCLUDE}")
    target_link_libraries(kinora_third_party::ffmpeg INTERFACE ${KINORA_FFMPEG_LIBRARIES})
  elseif(KINORA_FFMPEG STREQUAL "ON")
    message(FATAL_ERROR "Kinora: KINORA_FFMPEG=ON, but FFmpeg's development packages are not here: "
                        "scripts/setup.sh --video installs them")
  else()
    message(STATUS "Kinora: no FFmpeg; video files need it (scripts/setup.sh --video)")
  endif()
endif()

find_package(GTest REQUIRED)
if(KINORA_BENCH)
  find_package(benchmark REQUIRED)
endif()
