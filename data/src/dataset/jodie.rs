//! JODIE csv (Kumar, Zhang, Leskovec, KDD 2019): `user_id,item_id,timestamp,state_label` and then features.
//!
//! Its header names one feature column, `comma_separated_list_of_features`, while rows carry many. Users and items have
//! id spaces of their own. Files of this family without features have the first four columns only.

use super::config::Columns;
use super::layout::{FeatureFields, Layout};
use crate::error::FaultKind;

/// Where the features start.
const FEATURES: usize = 4;

/// Whether a header is JODIE's: four named columns and one that stands for many.
pub(crate) fn is_header(names: &[String], first_row_fields: usize) -> bool {
    names.len() == FEATURES + 1
        && names[FEATURES].to_ascii_lowercase().contains("feature")
        && (first_row_fields != names.len() || names[FEATURES].contains("comma_separated"))
}

/// JODIE's columns are known by position; a mapping by name goes before.
///
/// # Errors
/// If the mapping names a column that the header lacks.
pub(crate) fn layout(names: Vec<String>, mapping: &Columns) -> Result<Layout, FaultKind> {
    if *mapping != Columns::default() {
        let mut layout = Layout::find(names, mapping)?;
        if mapping.features.is_empty() {
            let list = layout.names.get(FEATURES).cloned();
            layout.ignored.retain(|name| Some(name) != list.as_ref());
            layout.features = FeatureFields::From(FEATURES);
        }
        return Ok(layout);
    }
    Ok(Layout {
        source: 0,
        destination: 1,
        time: 2,
        label: Some(3),
        features: FeatureFields::From(FEATURES),
        ignored: Vec::new(),
        names,
    })
}
