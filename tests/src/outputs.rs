//! safetensors files compared bit by bit.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;

/// Same tensors, same types and shapes, same bits, or the test fails and names the first that differs.
#[track_caller]
pub fn assert_same_bits(a: &Path, b: &Path) {
    let (left, right) = (read(a), read(b));
    let (left, right) = (parse(a, &left), parse(b, &right));
    let names = |tensors: &SafeTensors<'_>| {
        let mut names: Vec<String> = tensors.names().into_iter().map(ToOwned::to_owned).collect();
        names.sort();
        names
    };
    assert_eq!(names(&left), names(&right), "{} and {}", a.display(), b.display());
    assert!(!left.is_empty(), "{} is empty", a.display());
    for name in names(&left) {
        let (x, y) = (left.tensor(&name).expect("it is listed"), right.tensor(&name).expect("it is listed"));
        assert_eq!((x.dtype(), x.shape()), (y.dtype(), y.shape()), "{name}");
        let differing = x.data().iter().zip(y.data()).filter(|(x, y)| x != y).count();
        assert_eq!(differing, 0, "{name}: {differing} bytes differ in {} and {}", a.display(), b.display());
    }
}

/// `(name, dtype, shape)` of every tensor, by name.
pub fn table(path: &Path) -> Vec<(String, String, Vec<usize>)> {
    let bytes = read(path);
    let tensors = parse(path, &bytes);
    let mut table: Vec<_> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, format!("{:?}", view.dtype()), view.shape().to_vec()))
        .collect();
    table.sort();
    table
}

/// One tensor of 32-bit integers.
///
/// # Panics
/// If the file does not have it.
pub fn integers(path: &Path, name: &str) -> Vec<i32> {
    let bytes = read(path);
    let tensors = parse(path, &bytes);
    let view = tensors.tensor(name).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let words = view.data().chunks_exact(4);
    words.map(|word| i32::from_le_bytes(word.try_into().expect("chunks of 4"))).collect()
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parse<'b>(path: &Path, bytes: &'b [u8]) -> SafeTensors<'b> {
    SafeTensors::deserialize(bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
