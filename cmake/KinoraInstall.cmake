# The package that find_package(Kinora) finds, and what else `make install` installs beside libraries,
# headers (kinora_library) and programs (kinora_install_programs).
include(CMakePackageConfigHelpers)

set(package lib/cmake/Kinora)
configure_file(cmake/KinoraConfig.cmake.in KinoraConfig.cmake @ONLY)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/KinoraConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/KinoraConfig.cmake"
              "${PROJECT_BINARY_DIR}/KinoraConfigVersion.cmake" cmake/FindTorch.cmake
              cmake/KinoraLinked.cmake DESTINATION "${package}")
install(EXPORT KinoraTargets NAMESPACE kinora:: DESTINATION "${package}")
install(DIRECTORY configs DESTINATION share/kinora)
install(FILES LICENSE NOTICE DESTINATION share/doc/kinora)
