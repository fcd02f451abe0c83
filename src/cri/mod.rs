//! The CRI v1 client. The async world ends at this door.
