package encoder

// Version numbers the meaning of what Features and Images write. A network knows its inputs by position alone, so
// adding, dropping or redefining a figure must raise it; checkpoints of another version are refused.
const Version = 2
