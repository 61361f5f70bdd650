package dqn

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/google/renameio/v2"
)

// mostBytes bounds the size of a checkpoint: with mostHidden units it takes 180 MB.
const mostBytes = 1 << 28

// number is number k of a block.
func number(block []byte, k int) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(block[8*k:]))
}

// encoded and decoded convert between a network's numbers and a file's, which have more digits
// than a network uses.
func encoded(blocks ...[]float32) [][]byte {
	out := make([][]byte, len(blocks))
	for i, b := range blocks {
		for _, v := range b {
			out[i] = binary.LittleEndian.AppendUint64(out[i], math.Float64bits(float64(v)))
		}
	}
	return out
}

func decoded(blocks [][]byte) [][]float32 {
	out := make([][]float32, len(blocks))
	for i, b := range blocks {
		for k := range len(b) / 8 {
			out[i] = append(out[i], float32(number(b, k)))
		}
	}
	return out
}

// sum is the SHA-256 of all numbers, hex.
func (c *Checkpoint) sum() string {
	sum := sha256.Sum256(bytes.Join(c.Theta, nil))
	return hex.EncodeToString(sum[:])
}

// Save writes the checkpoint to a world-readable file, atomically. Errors wrap
// ErrCheckpoint where the checkpoint couldn't be read again, else the system's.
func Save(path string, c *Checkpoint) error {
	if what := c.wrong(); what != "" {
		return fmt.Errorf("write checkpoint %s: %w: %s", path, ErrCheckpoint, what)
	}
	text, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return fmt.Errorf("write checkpoint %s: %w", path, err)
	}
	if err := renameio.WriteFile(path, append(text, '\n'), 0o644, renameio.WithStaticPermissions(0o644)); err != nil {
		return fmt.Errorf("write checkpoint %s: %w", path, err)
	}
	return nil
}

// Load reads the checkpoint in a file. Errors wrap ErrCheckpoint or the system's error.
func Load(path string) (*Checkpoint, error) {
	f, err := os.Open(path) //nolint:gosec // the operator names it
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	return Read(f, path)
}

// Read reads a checkpoint from which Network rebuilds a network; name is the file's,
// for errors, which wrap ErrCheckpoint or r's error.
func Read(r io.Reader, name string) (*Checkpoint, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("read checkpoint %s: %w: %s", name, ErrCheckpoint, fmt.Sprintf(format, args...))
	}
	text, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read checkpoint %s: %w", name, err)
	}
	if len(text) > mostBytes {
		return nil, bad("it is larger than %d bytes; name a file that `slurmbridge train` wrote", mostBytes)
	}
	c := &Checkpoint{}
	err = json.Unmarshal(text, c)
	var other *json.UnmarshalTypeError
	if err != nil && !errors.As(err, &other) {
		return nil, bad("%s", notJSON(text, err))
	}
	if what := c.wrong(); what != "" { // a foreign file's format says more than a field that doesn't fit
		return nil, bad("%s", what)
	}
	if err != nil {
		return nil, bad("%s", notJSON(text, err))
	}
	return c, nil
}

// notJSON explains an error of encoding/json.
func notJSON(text []byte, err error) string {
	var syntax *json.SyntaxError
	switch {
	case len(text) == 0:
		return "it is empty; copy it again or train it again"
	case errors.As(err, &syntax) && syntax.Error() == "unexpected end of JSON input":
		return fmt.Sprintf("it ends in the middle, after %d bytes; copy it again or train it again", len(text))
	case errors.As(err, &syntax):
		return fmt.Sprintf("it isn't JSON (byte %d: %v); name a file that `slurmbridge train` wrote", syntax.Offset, err)
	}
	return fmt.Sprintf("%v; copy it again or train it again", err)
}
