package encoder

// Version numbers the meaning of what Features and Images write. A network knows
// its inputs by their places alone, so whoever adds, drops or redefines a figure
// raises it, and checkpoints of another version are refused.
const Version = 1
