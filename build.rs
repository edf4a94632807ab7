//! Puts libtorch's folder into the run path of every binary, so that no environment variable is needed to start one.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        let lib = std::fs::canonicalize(&lib).map_or(lib, |path| path.display().to_string());
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
