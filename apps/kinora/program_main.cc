#include "apps/kinora/program.h"

int main(int argc, char** argv) {
  kinora::apps::run_program(argc, argv);
}
