//! Tables and JSON. Takes results, decides nothing.
