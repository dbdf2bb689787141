//! Linear handles stay linear in what ships (law: identity is ours).

use std::fs;
use std::path::{Path, PathBuf};

fn sources(under: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![under.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                found.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

/// Copies of linear handles exist for checkers; nothing that is shipped and decides when something
/// runs may make one. (`handoff` passes them on to its own checkers.)
#[test]
fn no_product_crate_copies_a_linear_handle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in fs::read_dir(crates).unwrap().flatten() {
        let name = entry.file_name();
        let checks = ["pages", "handoff", "checker", "lab", "testkit"];
        if checks.iter().any(|known| *known == name) {
            continue;
        }
        for (path, text) in sources(&entry.path().join("src")) {
            assert!(!text.contains("_for_checker"), "{}", path.display());
        }
    }
}
