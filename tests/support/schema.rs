//! Checks documents against their schemas.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use jsonschema::Validator;
use serde_json::Value;

/// Fails unless `document` fits the schema of `command` in `docs/schema`.
pub fn assert_fits(command: &str, document: &Value) {
    let validator = validator(command);
    let errors: Vec<String> =
        validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{command}: {errors:#?}");
}

/// Returns the validator of a schema, which is compiled once: some tests check hundreds of documents.
fn validator(command: &str) -> Rc<Validator> {
    thread_local! {
        static MADE: RefCell<HashMap<String, Rc<Validator>>> = RefCell::default();
    }
    MADE.with_borrow_mut(|made| Rc::clone(made.entry(command.to_owned()).or_insert_with(|| compile(command))))
}

fn compile(command: &str) -> Rc<Validator> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema").join(format!("{command}.json"));
    let schema = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let schema: Value = serde_json::from_slice(&schema).expect("a schema in JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    // A schema that allows everything proves nothing.
    let kindless = serde_json::json!({"schema_version": 1});
    assert!(!validator.is_valid(&kindless), "{} is too loose", path.display());
    Rc::new(validator)
}
