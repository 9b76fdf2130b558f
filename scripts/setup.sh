#!/usr/bin/env bash
# Installs what a build of Kinora lacks; says nothing and takes no time where nothing is lacking.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/setup.sh [--dev] [--parquet] [--video] [--cuda | --no-cuda]

Installs the Debian/Ubuntu packages that are missing, and torch (libtorch) into the private
environment .venv beside this folder. Run it as often as you like: it only does what is left to do.
Without an NVIDIA GPU it installs only what a program for the CPU alone needs.

  --dev      also what developers and CI want: clang-format, clang-tidy, debootstrap, an MPI, a
             compiler for Arm and an emulator, a browser (on Debian), and torch, diffusers, PEFT
             and TensorBoard for Python, to compare with
  --parquet  also pyarrow (50 MB), for the module that reads .parquet manifests; then build again
  --video    also FFmpeg, to read and write video files (56 MB to download, 200 MB on disk)
  --cuda     also CUDA's libraries, and nvcc from PyPI if no CUDA 13 toolkit is found (the default
             where an NVIDIA GPU is)
  --no-cuda  nothing for GPUs, even where one is

Variables:
  KINORA_TORCH_DIR  use this libtorch (a folder with include/ and lib/); no environment is made
  KINORA_PYTHON     the Python (3.10 to 3.14) that makes the environment
TEXT
}

readonly TORCH_VERSION=2.11.0
readonly CUDA_MAJOR=13
# The two libraries of CUDA that libtorch_cpu.so is linked with.
readonly CPU_PACKAGES=("torch==$TORCH_VERSION" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# The headers of CUDA that come with torch need these: crt/ and nv/target.
readonly CUDA_HEADER_PACKAGES=(nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85)
# C++ headers for cuDNN's attention; 1.32 would need the CUDA driver at link time.
readonly CUDNN_PACKAGE=nvidia-cudnn-frontend==1.18.0
# nvcc and its device compiler. The runtime comes with torch.
readonly NVCC_PACKAGES=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 "${CUDA_HEADER_PACKAGES[@]}")
readonly PACKAGES=(make g++ cmake ninja-build ccache git ca-certificates libyaml-cpp-dev
                   libcli11-dev nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev
                   libjpeg-dev libpng-dev libwebp-dev libgif-dev libstb-dev libtiff-dev
                   libxxhash-dev zlib1g-dev libgloo-dev libpcre2-dev libutf8proc-dev
                   liburing-dev)
# One version of the tools everywhere: another clang-format formats otherwise.
readonly DEV_PACKAGES=(clang-format-14 clang-tidy-14 python3 debootstrap openmpi-bin
                       g++-aarch64-linux-gnu qemu-user)
# A browser, for the test of the page of kinora runs report. Ubuntu's is a snap, which a test cannot use.
readonly BROWSER_PACKAGE=chromium
# What tests compare with, where it is there.
readonly PYTHON_PACKAGES=(diffusers==0.42.1 peft==0.21.2 transformers==5.23.0 tensorboard==2.21.0)
# Arrow C++: headers and libraries.
readonly ARROW_PACKAGE=pyarrow==26.0.1
readonly VIDEO_PACKAGES=(libavformat-dev libavcodec-dev libswscale-dev libavutil-dev)

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf 'setup: error: %s\n' "$1" >&2
  shift
  [[ $# -eq 0 ]] || printf '       %s\n' "$@" >&2
  exit 1
}

dev=false
parquet=false
video=false
cuda=auto
for argument in "$@"; do
  case "$argument" in
    --dev) dev=true ;;
    --parquet) parquet=true ;;
    --video) video=true ;;
    --cuda) cuda=yes ;;
    --no-cuda) cuda=no ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown option: $argument" ;;
  esac
done

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ "$cuda" == auto ]]; then
  cuda=no
  ! "$root/scripts/gpus.sh" --any || cuda=yes
fi
# All of torch, for GPUs and for Python, or the part that the CPU alone needs.
if [[ "$cuda" == yes ]] || "$dev"; then
  part=whole space_mb=7000 download='2.5 GB' torch_packages=("torch==$TORCH_VERSION")
else
  part=cpu space_mb=2000 download='0.5 GB' torch_packages=(--no-deps "${CPU_PACKAGES[@]}")
fi
readonly part space_mb download torch_packages root venv="$root/.venv" stamp="$root/.venv/kinora-setup"
# As old as what was installed last: builds that are there then look again for what they can have.
readonly changes="$root/.cache/setup-changes"

# --- Debian packages -----------------------------------------------------------------------------

install_packages() {  # install_packages PACKAGE...: those of them that are missing
  command -v dpkg-query >/dev/null || {
    say "not a Debian or Ubuntu system: what Debian calls $* must be there; see docs/dependencies.md"
    return 0
  }
  local installed package missing=()
  # dpkg-query fails where it does not know one of them.
  installed=" $({ dpkg-query -W -f '${db:Status-Status}:${Package}\n' "$@" 2>/dev/null || true; } |
    sed -n 's/^installed://p' | tr '\n' ' ')"
  for package in "$@"; do
    [[ "$installed ${missing[*]} " == *" $package "* ]] || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0

  local install="install -y --no-install-recommends ${missing[*]}" sudo=()
  if [[ "$(id -u)" != 0 ]]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      sudo=(sudo)
    else
      die "these Debian packages are missing: ${missing[*]}" \
        "Installing them needs root. Run this as root, then this script again:" \
        "apt-get update && apt-get $install"
    fi
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Another apt-get may be at work, as on a machine that has just started.
  local apt=(apt-get -o DPkg::Lock::Timeout=600)
  "${sudo[@]}" "${apt[@]}" update -q ||
    die "apt-get update failed (see above). Is there a network, and is /etc/apt/sources.list right?"
  # shellcheck disable=SC2086
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive "${apt[@]}" $install ||
    die "apt-get could not install: ${missing[*]} (see above)." \
      "On Ubuntu these are in 'universe': add-apt-repository universe"
  touch "$changes"
}

# --- Python environment --------------------------------------------------------------------------

# A Python that torch has wheels for and that can make environments.
python_fits() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' \
    >/dev/null 2>&1
}

choose_python() {
  local candidate
  if [[ -n "${KINORA_PYTHON:-}" ]]; then
    python_fits "$KINORA_PYTHON" ||
      die "KINORA_PYTHON must be a Python 3.10 to 3.14 with venv and ensurepip, got $KINORA_PYTHON"
    printf '%s' "$KINORA_PYTHON"
    return
  fi
  for candidate in python3 /usr/bin/python3 python3.{13,12,11,10,14}; do
    if python_fits "$candidate"; then
      printf '%s' "$candidate"
      return
    fi
  done
  return 1
}

free_mb() { df -Pm "$1" | awk 'NR == 2 {print $4}'; }

pip_install() {
  # Python compiles what it imports; of the whole torch that is little.
  local log="$root/.cache/setup-pip.log"
  local options=(--disable-pip-version-check --no-input --no-compile)
  [[ -t 1 ]] || options+=(--progress-bar off)
  # Without the room for a second copy of the downloads, keep none.
  [[ "$(free_mb "$root")" -ge $((2 * space_mb)) ]] || options+=(--no-cache-dir)
  if "$venv/bin/python" -m pip install "${options[@]}" "$@" 2>"$log"; then
    touch "$changes"
    return
  fi
  cat "$log" >&2
  if grep -q 'No space left' "$log"; then
    die "the disk is full: pip needs about $space_mb MB at $venv and in TMPDIR."
  elif grep -qiE 'connection|resolution|timed out|proxy|max retries|no matching dist' "$log"; then
    die "pip could not get $* from PyPI. Is there a network?" \
      "Without one, unpack libtorch $TORCH_VERSION and give its folder by KINORA_TORCH_DIR"
  fi
  die "pip could not install $* (see above)."
}

# Whether the environment's libtorch loads; of the whole torch, Python's and the GPU's part, too.
torch_works() {
  local check="
import ctypes, sys, sysconfig
sys.path.insert(0, sysconfig.get_path('purelib'))
folder = sysconfig.get_path('purelib') + '/torch/'
exec(open(folder + 'version.py').read())
if __version__.split('+')[0] != '$TORCH_VERSION':
    sys.exit('it is torch ' + __version__)
ctypes.CDLL(folder + 'lib/libtorch_cpu.so')
if '$part' == 'whole':
    import torch
"
  "$venv/bin/python" -W ignore -c "$check" >/dev/null 2>"$root/.cache/setup-torch.log"
}

install_torch() {
  local found='' python free
  # The stamp is written last, so one that is there means an environment that was whole then.
  if "$venv/bin/python" -c '' 2>/dev/null; then
    if [[ -f "$stamp" ]] &&
      compgen -G "$venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so" >/dev/null; then
      found="$(<"$stamp")"
    fi
    case "$found" in
      "torch $TORCH_VERSION whole" | "torch $TORCH_VERSION $part") return ;;
    esac
  fi
  if [[ -e "$venv" && "$found" != "torch $TORCH_VERSION cpu" ]]; then
    say "checking the environment in .venv"
    if torch_works; then
      echo "torch $TORCH_VERSION $part" >"$stamp"
      return
    fi
    say "it is half-made or from elsewhere: making it anew"
    rm -rf "$venv"
  fi

  if [[ ! -e "$venv" ]]; then
    python="$(choose_python)" || die "no Python 3.10 to 3.14 with venv was found." \
      "Give one by KINORA_PYTHON"
  fi
  free="$(free_mb "$root")"
  [[ "$free" -ge "$space_mb" ]] || die "torch needs about $space_mb MB at $root, got $free MB free."

  if [[ ! -e "$venv" ]]; then
    say "making .venv with $("$python" -V)"
    "$python" -m venv "$venv" || die "$python could not make an environment (see above)." \
      "On Debian: apt-get install python3-venv; or give another Python by KINORA_PYTHON"
  fi
  say "installing torch $TORCH_VERSION from PyPI (a download of $download; some minutes)"
  pip_install "${torch_packages[@]}"
  torch_works || die "torch $TORCH_VERSION was installed, but does not load:" \
    "$(tail -n 1 "$root/.cache/setup-torch.log")"
  echo "torch $TORCH_VERSION $part" >"$stamp"
}

install_cuda_headers() {
  local file
  for file in crt/host_defines.h nv/target; do
    compgen -G "$venv/lib/python3*/site-packages/nvidia/cu13/include/$file" >/dev/null || {
      pip_install "${CUDA_HEADER_PACKAGES[@]}"
      return
    }
  done
}

install_cudnn_frontend() {
  local version="${CUDNN_PACKAGE#*==}"
  compgen -G "$venv/lib/python3*/site-packages/nvidia_cudnn_frontend-$version.dist-info" >/dev/null ||
    pip_install --no-deps "$CUDNN_PACKAGE"
}

install_python_packages() {
  local package
  for package in "${PYTHON_PACKAGES[@]}"; do
    compgen -G "$venv/lib/python3*/site-packages/${package/==/-}.dist-info" >/dev/null || {
      pip_install "${PYTHON_PACKAGES[@]}"
      return
    }
  done
}

install_arrow() {
  compgen -G "$venv/lib/python3*/site-packages/pyarrow-${ARROW_PACKAGE#*==}.dist-info" >/dev/null ||
    pip_install --no-deps "$ARROW_PACKAGE"
}

# --- nvcc ----------------------------------------------------------------------------------------

nvcc_fits() { "$1" --version 2>/dev/null | grep -q "release $CUDA_MAJOR\."; }

install_nvcc() {
  local candidate
  # As cmake/KinoraCuda.cmake looks for it.
  for candidate in "${CUDACXX:-}" "$venv"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc nvcc \
    /usr/local/cuda/bin/nvcc; do
    if [[ -n "$candidate" ]] && nvcc_fits "$candidate"; then
      return
    fi
  done
  [[ -z "${KINORA_TORCH_DIR:-}" ]] ||
    die "no CUDA $CUDA_MAJOR nvcc was found, and with KINORA_TORCH_DIR there is no .venv to put it in." \
      "Install the CUDA $CUDA_MAJOR toolkit, or give its nvcc by CUDACXX"
  say "installing nvcc ${NVCC_PACKAGES[0]#*==} from PyPI"
  pip_install "${NVCC_PACKAGES[@]}"
  candidate="$(compgen -G "$venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc")"
  nvcc_fits "$candidate" || die "nvcc was installed, but does not run: $candidate"
}

# -------------------------------------------------------------------------------------------------

mkdir -p "$root/.cache"
exec 9>"$root/.cache/setup.lock"
if ! flock -n 9; then
  say "waiting for another setup.sh of this folder"
  flock 9
fi

# All at once: who has no rights of root is asked once.
packages=("${PACKAGES[@]}")
if "$dev"; then
  packages+=("${DEV_PACKAGES[@]}")
  ! grep -qx 'ID=debian' /etc/os-release 2>/dev/null || packages+=("$BROWSER_PACKAGE")
fi
if "$video"; then
  packages+=("${VIDEO_PACKAGES[@]}")
fi
if [[ -z "${KINORA_TORCH_DIR:-}" && ! -f "$stamp" ]] && ! choose_python >/dev/null; then
  packages+=(python3 python3-venv)
fi
install_packages "${packages[@]}"

if [[ -n "${KINORA_TORCH_DIR:-}" ]]; then
  [[ -f "$KINORA_TORCH_DIR/include/torch/headeronly/version.h" &&
    -f "$KINORA_TORCH_DIR/lib/libtorch_cpu.so" ]] ||
    die "KINORA_TORCH_DIR must be the folder of a libtorch $TORCH_VERSION, with include/ and lib/," \
      "got $KINORA_TORCH_DIR"
else
  install_torch
  if [[ "$cuda" == yes ]]; then
    install_cuda_headers
    install_cudnn_frontend
  fi
  if "$dev"; then
    install_python_packages
  fi
  if "$parquet"; then
    install_arrow
  fi
fi

if [[ "$cuda" == yes ]]; then
  install_nvcc
fi
[[ -e "$changes" ]] || touch "$changes"
