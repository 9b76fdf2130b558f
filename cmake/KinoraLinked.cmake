# Third-party libraries that our libraries are linked with. Part of the installed package, too, which
# finds them again for programs that use it.
find_package(Threads REQUIRED)

# kinora_static_dependency(NAME header library...): the imported target kinora_third_party::NAME.
# The static library where there is one, as on Debian and Ubuntu; else the shared one.
function(kinora_static_dependency name header)
  if(TARGET kinora_third_party::${name})
    return()
  endif()
  find_path(KINORA_${name}_INCLUDE ${header} REQUIRED)
  set(files)
  foreach(library IN LISTS ARGN)
    find_library(KINORA_${name}_${library} NAMES lib${library}.a ${library} NAMES_PER_DIR REQUIRED)
    if(NOT KINORA_${name}_${library} MATCHES "\\.a$")
      message(STATUS "Kinora: no static ${library}; the program will need the shared one")
    endif()
    list(APPEND files "${KINORA_${name}_${library}}")
  endforeach()
  add_library(kinora_third_party::${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(kinora_third_party::${name} SYSTEM
                             INTERFACE "${KINORA_${name}_INCLUDE}")
  target_link_libraries(kinora_third_party::${name} INTERFACE ${files})
endfunction()

kinora_static_dependency(yaml_cpp yaml-cpp/yaml.h yaml-cpp)
kinora_static_dependency(pcre2 pcre2.h pcre2-8)
kinora_static_dependency(utf8proc utf8proc.h utf8proc)
kinora_static_dependency(gif gif_lib.h gif)
kinora_static_dependency(jpeg jpeglib.h jpeg)
kinora_static_dependency(png png.h png z)
kinora_static_dependency(uring liburing.h uring)
kinora_static_dependency(webp webp/decode.h webpmux webpdemux webp)
find_library(KINORA_SHARPYUV NAMES libsharpyuv.a)  # a part of libwebp of its own since 1.3
if(KINORA_SHARPYUV)
  target_link_libraries(kinora_third_party::webp INTERFACE "${KINORA_SHARPYUV}")
endif()
