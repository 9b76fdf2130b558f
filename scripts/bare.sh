#!/usr/bin/env bash
# Proves that README's two commands work on a machine that has nothing.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/bare.sh [--quick] [--user] [--terminal] [--keep] [SUITE]

Makes a bare machine (SUITE: what debootstrap calls minbase, and make) in a folder of its own,
clones the last commit into it, under a path with a space and beside a half-made .venv, and runs
`make demo` and `make test` there. Says how long each step took. SUITE is bookworm, Debian 12, if
none is given; noble is Ubuntu 24.04 and wants Ubuntu's keys in
/usr/share/keyrings/ubuntu-archive-keyring.gpg. Wants root, debootstrap, 20 GB of disk and the
network.

  --quick     only what shows that nothing is missing: set-up, the program, ten steps of the demo,
              then the set-up for GPUs and every source that includes CUDA's headers. Uses the
              caches of ccache and pip of this machine
  --user      as an ordinary user; what the set-up asks root to install is installed as it asks.
              With --quick it gets a copy of ccache's cache
  --terminal  on a terminal
  --keep      keep the folder, and say where it is

Variables: TMPDIR, where the folder is made; proxies and pip's own variables are passed on.
TEXT
}

say() { printf 'bare: %s\n' "$*"; }
die() { printf 'bare: error: %s\n' "$*" >&2; exit 1; }

quick=false user=false terminal=false keep=false suite=bookworm
for argument in "$@"; do
  case "$argument" in
    --quick) quick=true ;;
    --user) user=true ;;
    --terminal) terminal=true ;;
    --keep) keep=true ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; die "unknown option: $argument" ;;
    *) suite="$argument" ;;
  esac
done
[[ "$(id -u)" == 0 ]] || die "root is needed, for chroot and mount"
command -v debootstrap >/dev/null || die "debootstrap is lacking: apt-get install debootstrap"

source="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bare="$(mktemp -d "${TMPDIR:-/var/tmp}/kinora-bare.XXXXXX")"
chmod 755 "$bare"  # its / is for every user
readonly source bare clone='/srv/a clone/kinora'
box=''  # the process that contained() waits for
finish() {
  if "$keep"; then
    say "kept: $bare"
  else
    rm -rf --one-file-system "$bare"
  fi
}
stop() {  # stop SIGNAL
  trap '' HUP INT TERM
  if [[ -n "$box" ]]; then
    # A box ends with its first process, the child of unshare, which is itself deaf to SIGTERM.
    local first=()
    read -ra first <"/proc/$box/task/$box/children" || true
    kill -KILL "${first[@]:-$box}" || true
    wait "$box" || true
  fi
  rm -f "$bare.log"
  exit $((128 + $1))
} 2>/dev/null
trap finish EXIT
trap 'stop 1' HUP
trap 'stop 2' INT
trap 'stop 15' TERM

# contained COMMAND...: with mounts and processes of its own, none of which outlives it.
contained() {
  local status=0
  unshare --mount --pid --fork --kill-child --mount-proc "$@" <&0 &
  box=$!
  wait "$box" || status=$?
  box=''
  return "$status"
}

variables=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
for name in {http,https,no,HTTP,HTTPS,NO}_{proxy,PROXY} PIP_INDEX_URL PIP_DEFAULT_TIMEOUT; do
  [[ -z "${!name:-}" ]] || variables+=("$name=${!name}")
done

# as USER COMMAND...: in the clone.
as() {
  local who="$1" home=/root
  shift
  [[ "$who" == root ]] || home="/home/$who"
  # shellcheck disable=SC2016
  contained bash -euc '
    bare="$1" caches="$2"
    shift 2
    mount -t proc proc "$bare/proc"
    mount --rbind /sys "$bare/sys"
    mount --rbind /dev "$bare/dev"
    if [[ -n "$caches" ]]; then
      mount --bind "${caches%%:*}" "$bare/var/cache/ccache"
      mount --bind "${caches##*:}" "$bare/var/cache/pip"
    fi
    exec chroot "$@"' _ "$bare" "$caches" --userspec="$who" "$bare" \
    env -i "${variables[@]}" HOME="$home" USER="$who" bash -euc 'cd "$0"; exec "$@"' "$clone" "$@"
}

report=''
# step NAME COMMAND...: as the user whom the options name.
step() {
  local name="$1" begin=$SECONDS
  shift
  say "$name: $*"
  local command=("$@")
  if "$terminal"; then
    command=(script --quiet --return --command "$(printf '%q ' "$@")" /dev/null)
  fi
  as "$who" "${command[@]}" </dev/null || die "$name failed: $*"
  report+="$(printf '%-24s %4d s' "$name" $((SECONDS - begin)))"$'\n'
}

say "making a bare $suite in $bare"
machine=(--variant=minbase --include=make "$suite" "$bare")
if [[ "$suite" == noble ]]; then  # which Debian's debootstrap does not know; Ubuntu's images have universe
  machine=(--components=main,universe "${machine[@]}" '' /usr/share/debootstrap/scripts/gutsy)
fi
contained debootstrap "${machine[@]}" >"$bare.log" 2>&1 ||
  { tail -n 20 "$bare.log" >&2; die "debootstrap failed; its output is in $bare.log"; }
rm "$bare.log"
cp /etc/resolv.conf "$bare/etc/resolv.conf"
if [[ -n "${PIP_CERT:-}" ]]; then
  cp "$PIP_CERT" "$bare/etc/bare-pip.crt"
  variables+=(PIP_CERT=/etc/bare-pip.crt)
fi

git clone --quiet --no-hardlinks "$source" "$bare$clone"
commit="$(git -C "$bare$clone" rev-parse --short HEAD)"
readonly commit
mkdir -p "$bare$clone/.venv/bin"
touch "$bare$clone/.venv/bin/python"
who=root caches=''
if "$quick"; then
  mkdir -p "$(ccache --get-config cache_dir)" "$bare/var/cache/ccache"
  # With the last two, as in the Makefile, a clone elsewhere has made these objects.
  variables+=(CCACHE_DIR=/var/cache/ccache CCACHE_BASEDIR="$clone" CCACHE_NOHASHDIR=1)
fi
if "$quick" && ! "$user"; then
  caches="$(ccache --get-config cache_dir):${PIP_CACHE_DIR:-$HOME/.cache/pip}"
  mkdir -p "${caches##*:}" "$bare/var/cache/pip"
  variables+=(PIP_CACHE_DIR=/var/cache/pip)
fi
if "$user"; then
  chroot "$bare" useradd --create-home bare
  if "$quick"; then  # which root owns
    cp -r "$(ccache --get-config cache_dir)/." "$bare/var/cache/ccache"
    chroot "$bare" chown -R bare: /var/cache/ccache
  fi
  chroot "$bare" chown -R bare: "${clone%/*}"
  who=bare
  # It cannot install packages, and says which command can.
  if as "$who" make setup </dev/null 2>"$bare/tmp/asked"; then
    die "a user without root could set up a bare machine"
  fi
  cat "$bare/tmp/asked" >&2
  install="$(sed -n 's/^ *\(apt-get update && .*\)/\1/p' "$bare/tmp/asked")"
  [[ -n "$install" ]] || die "the set-up did not say what to install"
  as root bash -c "$install" </dev/null >/dev/null
fi

if "$quick"; then
  step 'set-up' make setup
  step 'configure and build' make build
  step 'version' build/kinora --version
  step 'ten steps of the demo' build/kinora demo train.steps=10 run.dir=runs/ten
  step 'set-up for GPUs' scripts/setup.sh --cuda
  step 'configure for GPUs' cmake --preset cuda -B build-gpu -DKINORA_CUDA_ARCHITECTURES=90a-real
  # A target FILE^ is what becomes of FILE; files no_*.cc are for builds without.
  mapfile -t targets < <(git -C "$source" grep -lE \
    '#include [<"](cuda|cublas|cudnn|cupti|nccl|c10/cuda|kinora/kernels/cuda/)' -- 'kinora/*.c[cu]' |
    grep -v '/no_' | sed "s|.*|$clone/&^|")
  [[ ${#targets[@]} -gt 20 ]] || die "no sources with CUDA's headers were found"
  step "CUDA's headers" ninja -C build-gpu "${targets[@]}"
else
  step 'set-up' make setup
  step 'build' make build
  step 'demo' make demo
  step 'test' make test
fi
printf 'bare: %s works on a bare %s (%s)\n%s' "$commit" "$suite" \
  "$who, $(nproc) cores" "$report"
