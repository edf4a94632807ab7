#!/usr/bin/env bash
# Installs what a build needs and is missing; says what; does nothing the second time.
#
#   GPU=auto   libtorch with its CUDA libraries where NVIDIA's driver is present, without them elsewhere (default)
#   GPU=none   without, GPU=cuda with
#
# An existing libtorch is honoured: set LIBTORCH to its folder, or LIBTORCH_USE_PYTORCH=1 to use the one of Python's torch.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TORCH=2.11.0
# What libtorch_cpu.so of this version links to even without a GPU.
readonly CPU_RUNTIME=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
readonly VENV=.libtorch
readonly STAMP=$VENV/installed
GPU=${GPU:-auto}

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    printf 'setup: error: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# --- Rust ---------------------------------------------------------------------------------------------------------------

check_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    have cargo || fail "cargo is missing; install Rust $wanted or newer from https://rustup.rs, then run this again"
    found=$(cargo --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] ||
        fail "cargo $found is too old; install Rust $wanted or newer (rustup update stable), then run this again"
}

# --- System packages ----------------------------------------------------------------------------------------------------

has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null ||
        { have ldconfig && ldconfig -p | grep -q 'libclang[^ ]*\.so'; }
}

missing_packages() {
    have g++ || echo g++
    have make || echo make
    have pkg-config || echo pkg-config
    have mpicc || echo libopenmpi-dev
    have mpirun || echo openmpi-bin
    has_libclang || echo libclang-dev
    if ! uses_own_libtorch; then
        python3 -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
    fi
}

install_packages() {
    local missing sudo=()
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" -gt 0 ] || return 0
    have apt-get || fail "these are missing: ${missing[*]} (Debian's names); install them with your system's package manager"
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || fail "these are missing: ${missing[*]}; run as root: apt-get install ${missing[*]}"
        sudo=(sudo)
    fi
    say "installing system packages: ${missing[*]}"
    "${sudo[@]}" apt-get update -qq >&2 || say "the package lists could not be refreshed; trying with those at hand"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
        fail "apt-get could not install ${missing[*]}; check the network and the disk, then run this again"
}

# --- libtorch -----------------------------------------------------------------------------------------------------------

uses_own_libtorch() { [ -n "${LIBTORCH_USE_PYTORCH:-}" ] || [ -n "${LIBTORCH:-}" ]; }

has_nvidia_driver() {
    [ -e /proc/driver/nvidia/version ] || { have nvidia-smi && nvidia-smi -L >/dev/null 2>&1; }
}

# "cpu" or "cuda": which libraries come with libtorch.
flavour() {
    case "$GPU" in
    none) echo cpu ;;
    cuda) echo cuda ;;
    auto) if has_nvidia_driver; then echo cuda; else echo cpu; fi ;;
    *) fail "GPU=$GPU is not known; set GPU=auto, GPU=none or GPU=cuda" ;;
    esac
}

check_disk() {
    local wanted_gb=$1 free_kb
    free_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
    [ "$free_kb" -ge $((wanted_gb * 1000 * 1000)) ] ||
        fail "libtorch and the build need about $wanted_gb GB in $PWD, but $((free_kb / 1000000)) GB are free; free some and run this again"
}

is_installed() {
    [ -e "$VENV/torch/lib/libtorch_cpu.so" ] && [ -e "$STAMP" ] || return 1
    # One with the CUDA libraries serves hosts without a GPU too.
    [ "$(cat "$STAMP")" = "$TORCH $1" ] || [ "$(cat "$STAMP")" = "$TORCH cuda" ]
}

install_libtorch() {
    if [ -n "${LIBTORCH_USE_PYTORCH:-}" ]; then
        say "using the libtorch of Python's torch (LIBTORCH_USE_PYTORCH is set)"
        return
    fi
    if [ -n "${LIBTORCH:-}" ]; then
        [ -d "$LIBTORCH/lib" ] || fail "LIBTORCH=$LIBTORCH has no lib folder; point it to a libtorch $TORCH, or unset it"
        say "using the libtorch in $LIBTORCH (LIBTORCH is set)"
        return
    fi
    local flavour packages
    flavour=$(flavour)
    if is_installed "$flavour"; then return; fi
    if [ "$flavour" = cuda ]; then
        check_disk 8
        packages=("torch==$TORCH")
        say "installing libtorch $TORCH with its CUDA libraries into $VENV (about 4.7 GB)"
    else
        check_disk 3
        packages=(--no-deps "torch==$TORCH" "${CPU_RUNTIME[@]}")
        say "installing libtorch $TORCH into $VENV (about 1.3 GB)"
    fi
    [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || python3 -m venv "$VENV" ||
        fail "python3 could not make a virtual environment in $VENV; remove that folder and run this again"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" >&2 ||
        fail "pip could not install torch $TORCH; check the network and the disk (3 GB), or set LIBTORCH to a libtorch $TORCH on this machine"
    ln -sfn "$("$VENV/bin/python" -c 'import os, sysconfig
print(os.path.relpath(os.path.join(sysconfig.get_path("purelib"), "torch"), os.path.dirname(sysconfig.get_path("scripts"))))')" "$VENV/torch"
    [ -e "$VENV/torch/lib/libtorch_cpu.so" ] || fail "torch $TORCH was installed without libtorch_cpu.so; remove $VENV and run this again"
    echo "$TORCH $flavour" >"$STAMP"
}

check_rust
install_packages
install_libtorch
say "everything is in place"
