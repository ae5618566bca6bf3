//! Directories of safetensors files, whole and broken.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{
    Checkpoint, CheckpointError, Dtype,
    checkpoint::{Run, runs},
    forge::{Forge, file_bytes},
    inventory::Slice,
    names,
};

fn part(tensors: &[(&str, u8)]) -> Forge {
    let mut forge = Forge::default();
    for (name, fill) in tensors {
        forge.set(name, Dtype::U8, &[2, 3], vec![*fill; 6]);
    }
    forge
}

fn index(dir: &Path, map: &Value) {
    let index = json!({ "metadata": { "total_size": 12 }, "weight_map": map });
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn read(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    checkpoint.read_vec(checkpoint.get(name).unwrap().slice).unwrap()
}

fn error(dir: &Path) -> String {
    Checkpoint::open(dir).unwrap_err().to_string().replace(&dir.display().to_string(), "DIR")
}

#[test]
fn one_file_several_files_or_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    assert_eq!(error(dir.path()), "DIR: no *.safetensors here");
    part(&[("a", 1)]).write_file(&at("x.safetensors"));
    part(&[("language_model.b", 2)]).write_file(&at("y.safetensors"));
    part(&[("hidden", 2)]).write_file(&at("._y.safetensors"));
    let several = Checkpoint::open(dir.path()).unwrap();
    assert_eq!((read(&several, "a"), read(&several, "b")), (vec![1; 6], vec![2; 6]));
    assert_eq!(several.tensors().count(), 2);
    assert_eq!(several.get("a").unwrap().shape, [2, 3]);

    part(&[("a", 3)]).write_file(&at("model.safetensors"));
    let single = Checkpoint::open(dir.path()).unwrap();
    assert_eq!((read(&single, "a"), single.tensors().count()), (vec![3; 6], 1));

    index(dir.path(), &json!({ "a": "x.safetensors", "language_model.b": "y.safetensors" }));
    let indexed = Checkpoint::open(dir.path()).unwrap();
    assert_eq!((read(&indexed, "a"), read(&indexed, "b")), (vec![1; 6], vec![2; 6]));
    assert_eq!(indexed.files().count(), 2);
}

#[test]
fn symlinks_are_followed() {
    let (cache, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    part(&[("a", 7)]).write_file(&cache.path().join("blob"));
    std::os::unix::fs::symlink(cache.path().join("blob"), dir.path().join("model.safetensors")).unwrap();
    assert_eq!(read(&Checkpoint::open(dir.path()).unwrap(), "a"), [7; 6]);
}

#[test]
fn an_index_names_only_files_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    part(&[("a", 1)]).write_file(&dir.path().join("x.safetensors"));
    index(
        dir.path(),
        &json!({
            "a": "x.safetensors", "b": "../x.safetensors", "c": "/etc/x.safetensors", "d": "", "e": 3, "f": "passwd"
        }),
    );
    assert_eq!(
        error(dir.path()),
        "DIR: the index puts `b` in \"../x.safetensors\", not a file of this directory
  the index puts `c` in \"/etc/x.safetensors\", not a file of this directory
  the index puts `d` in \"\", not a file of this directory
  the index puts `e` in 3, not a file of this directory
  the index puts `f` in \"passwd\", not a file of this directory"
    );
}

#[test]
fn index_and_files_must_agree() {
    let dir = tempfile::tempdir().unwrap();
    part(&[("a", 1), ("language_model.b", 1)]).write_file(&dir.path().join("x.safetensors"));
    part(&[("b", 1), ("c", 1)]).write_file(&dir.path().join("y.safetensors"));
    index(
        dir.path(),
        &json!({
            "a": "x.safetensors", "c": "x.safetensors", "experts.0.w": "y.safetensors", "experts.1.w": "y.safetensors",
            "d": "z.safetensors"
        }),
    );
    assert_eq!(
        error(dir.path()),
        "DIR: tensor `b` of y.safetensors is already in x.safetensors as `language_model.b`
  z.safetensors: No such file or directory (os error 2)
  x.safetensors: the index names tensors that are not in it: c
  y.safetensors: the index names tensors that are not in it: experts.{0..1}.w"
    );
    fs::write(dir.path().join("model.safetensors.index.json"), "{}").unwrap();
    assert_eq!(error(dir.path()), "DIR: model.safetensors.index.json has no object `weight_map`");
    fs::write(dir.path().join("model.safetensors.index.json"), "{").unwrap();
    assert!(error(dir.path()).starts_with("DIR: model.safetensors.index.json is not JSON"));
}

#[test]
fn an_incomplete_download_is_noticed_without_an_index() {
    let dir = tempfile::tempdir().unwrap();
    part(&[("a", 1)]).write_file(&dir.path().join("model-00001-of-00003.safetensors"));
    part(&[("b", 1)]).write_file(&dir.path().join("model-00003-of-00003.safetensors"));
    assert_eq!(
        error(dir.path()),
        "DIR: model-00001-of-00003.safetensors is one of 3 files, but only 2 are here"
    );
}

#[test]
fn broken_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let refused = |bytes: &[u8], expected: &str| {
        fs::write(&path, bytes).unwrap();
        assert_eq!(error(dir.path()), format!("DIR: model.safetensors: {expected}"));
    };
    refused(b"1234567", "7 bytes are too few for a safetensors file");
    refused(&u64::MAX.to_le_bytes(), "header of 18446744073709551615 bytes is above the limit of 100000000");
    refused(&[9, 0, 0, 0, 0, 0, 0, 0, b'{'], "header of 9 bytes does not fit the file of 9 bytes");

    let whole = |header: &Value| file_bytes(&header.to_string(), &[0; 8]);
    let tensor = |dtype: &str, shape: Value, offsets: Value| {
        whole(&json!({ "t": { "dtype": dtype, "shape": shape, "data_offsets": offsets } }))
    };
    refused(&tensor("U4", json!([4]), json!([0, 4])), "tensor `t` has unknown dtype U4");
    refused(
        &tensor("U8", json!([9]), json!([0, 9])),
        "tensor `t` lies at 0..9, outside the file's 8 data bytes",
    );
    refused(
        &tensor("U8", json!([0]), json!([5, 4])),
        "tensor `t` lies at 5..4, outside the file's 8 data bytes",
    );
    refused(&tensor("F32", json!([4]), json!([0, 4])), "tensor `t` is F32 [4] but has 4 bytes");
    let huge = json!([1_u64 << 40, 1_u64 << 40]);
    refused(
        &tensor("F32", huge, json!([0, 4])),
        "tensor `t` is F32 [1099511627776, 1099511627776] but has 4 bytes",
    );
    let twice = json!({ "dtype": "U8", "shape": [5], "data_offsets": [0, 5] });
    let other = json!({ "dtype": "U8", "shape": [4], "data_offsets": [4, 8] });
    refused(&whole(&json!({ "t": twice, "u": other })), "tensors `t` and `u` share bytes");
    refused(
        &file_bytes(&format!("{{\"t\":{twice},\"t\":{twice}}}"), &[0; 8]),
        "tensor `t` is declared twice",
    );
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(error(dir.path()).starts_with("DIR: model.safetensors: "));
}

#[test]
fn reads_stay_inside_their_file() {
    let dir = tempfile::tempdir().unwrap();
    part(&[("a", 1)]).write_file(&dir.path().join("model.safetensors"));
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let slice = checkpoint.get("a").unwrap().slice;
    let mut six = [0; 6];
    checkpoint.read(slice, &mut six).unwrap();
    assert!(checkpoint.read(slice, &mut [0; 5]).is_err());
    for bad in [
        Slice { file: 1, ..slice },
        Slice { offset: slice.offset + 1, ..slice },
        Slice { offset: u64::MAX, ..slice },
    ] {
        assert!(checkpoint.read(bad, &mut six).is_err());
    }
}

#[test]
fn mapped_bytes_are_the_file_s_and_outlive_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    part(&[("a", 1), ("b", 2)]).write_file(&dir.path().join("model.safetensors"));
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let slice = checkpoint.get("b").unwrap().slice;
    let mut told = 0;
    checkpoint.populate(&[slice], &mut |bytes| told += bytes).unwrap();
    let bytes = checkpoint.map(slice).unwrap();
    assert_eq!((&bytes[..], told), (&[2; 6][..], 6));
    for bad in [
        Slice { offset: slice.offset + 1, ..slice },
        Slice { file: 1, ..slice },
        Slice { len: u64::MAX, ..slice },
    ] {
        assert!(matches!(checkpoint.map(bad), Err(CheckpointError::BadRead { .. })), "{bad:?}");
        assert!(checkpoint.populate(&[slice, bad], &mut |_| panic!("nothing is there")).is_err());
    }
    drop((checkpoint, dir));
    assert_eq!(&bytes[..], [2; 6]);
}

#[test]
fn slices_are_read_in_the_order_of_the_files_and_neighbours_in_one_go() {
    let slice = |file, offset, len| Slice { file, offset, len };
    let run = |span, bytes| Run { span, bytes };
    let slices = [
        slice(1, 100, 50),
        slice(0, 9000, 1),
        slice(0, 154, 10),
        slice(0, 0, 150),
        slice(0, 20, 10),
        slice(0, 5, 0),
        slice(1, 4246, 4),
        slice(1, 4250 + 4097, 1),
    ];
    let expected = [
        run(slice(0, 0, 164), 170),
        run(slice(0, 9000, 1), 1),
        run(slice(1, 100, 4150), 54),
        run(slice(1, 8347, 1), 1),
    ];
    assert_eq!(runs(&slices), expected);
    assert_eq!(runs(&[]), []);

    let dir = tempfile::tempdir().unwrap();
    part(&[("a", 1), ("b", 2), ("c", 3)]).write_file(&dir.path().join("model.safetensors"));
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| checkpoint.get(name).unwrap().slice);
    for slices in [&[c, a][..], &[b, c, a], &[b], &[]] {
        let mut told = 0;
        checkpoint.populate(slices, &mut |bytes| told += bytes).unwrap();
        assert_eq!(told, slices.iter().map(|slice| slice.len).sum::<u64>());
    }
}

#[test]
fn a_file_cut_after_it_was_opened_is_an_error_not_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    part(&[("a", 1)]).write_file(&path);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let slice = checkpoint.get("a").unwrap().slice;
    let len = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
    let error = checkpoint.map(slice).unwrap_err().to_string();
    let lengths = format!("{} bytes long, but it had {len} when it was opened", len - 1);
    assert!(error.ends_with(&lengths) && error.starts_with(&path.display().to_string()), "{error}");
    let error = checkpoint.read_vec(slice).unwrap_err().to_string();
    assert!(error.contains(&lengths) && error.ends_with("is something still writing it?"), "{error}");
    // Opened anew, its header already tells.
    assert!(Checkpoint::open(dir.path()).is_err());
}

#[test]
fn a_pipe_or_a_folder_in_place_of_a_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    // Nobody ever writes to it.
    assert_eq!(error(dir.path()), "DIR: model.safetensors: not a file");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(error(dir.path()), "DIR: model.safetensors: not a file");
}

#[test]
fn naming_is_idempotent() {
    for name in [
        "language_model.model.norm.weight",
        "model.norm.weight",
        "language_model.language_model.model.norm.weight",
    ] {
        assert_eq!(names::canonical(name), "model.norm.weight");
        assert_eq!(names::canonical(names::canonical(name)), "model.norm.weight");
    }
    assert_eq!(names::canonical("vision.language_model.x"), "vision.language_model.x");
}
