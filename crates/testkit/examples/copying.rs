//! Writes the copying model: `cargo run -p testkit --example copying -- DIR CONTEXT`
#![forbid(unsafe_code)]

fn main() {
    let mut words = std::env::args().skip(1);
    let (dir, context) = (words.next(), words.next().and_then(|it| it.parse().ok()));
    let (Some(dir), Some(context)) = (dir, context) else {
        eprintln!("usage: copying DIR CONTEXT");
        std::process::exit(2);
    };
    let path = testkit::copying_gguf(std::path::Path::new(&dir), context);
    println!("{}", path.display());
}
