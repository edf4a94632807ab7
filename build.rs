//! Compiles the shim over libtorch's streams, and puts libtorch's folder into the run path of every binary, so that no environment
//! variable is needed to start one.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/device/stream.cpp");
    println!("cargo:rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    println!("cargo:rerun-if-env-changed=LIBTORCH_INCLUDE");
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else { return };
    let lib = std::fs::canonicalize(&lib).unwrap_or_else(|_| PathBuf::from(lib));
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    compile_streams(&lib);
}

/// Only headers of libtorch itself are read, none of CUDA's, so this builds on any host.
fn compile_streams(lib: &Path) {
    // torch-sys rules: an include folder of its own, else the one beside the libraries.
    let root = std::env::var_os("LIBTORCH_INCLUDE").map_or_else(|| lib.join(".."), PathBuf::from);
    let abi = std::env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_owned());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .include(root.join("include"))
        .flag(format!("-D_GLIBCXX_USE_CXX11_ABI={abi}"))
        .file("src/device/stream.cpp")
        .compile("tidemill_streams");
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=c10");
}
