package dqn

import (
	"crypto/sha256"
	"encoding/base64"
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

// Floats are numbers that JSON holds as base64 of their IEEE 754 bits, little endian,
// 8 bytes each: exact, and easy to read in any language.
type Floats []float64

// MarshalText implements encoding.TextMarshaler.
func (f Floats) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, f.bytes()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Floats) UnmarshalText(text []byte) error {
	raw, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("numbers in base64: %w", err)
	}
	if len(raw)%8 != 0 {
		return fmt.Errorf("numbers in base64: %d bytes, not a multiple of 8", len(raw))
	}
	out := make(Floats, len(raw)/8)
	for i := range out {
		out[i] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	*f = out
	return nil
}

func (f Floats) bytes() []byte {
	out := make([]byte, 0, 8*len(f))
	for _, v := range f {
		out = binary.LittleEndian.AppendUint64(out, math.Float64bits(v))
	}
	return out
}

// floats and plain convert between a network's numbers and a file's, which have more digits
// than a network uses.
func floats(b ...[]float32) []Floats {
	out := make([]Floats, len(b))
	for i := range b {
		out[i] = make(Floats, len(b[i]))
		for k, v := range b[i] {
			out[i][k] = float64(v)
		}
	}
	return out
}

func plain(b []Floats) [][]float32 {
	out := make([][]float32, len(b))
	for i := range b {
		out[i] = narrow(nil, b[i])
	}
	return out
}

// sum is the SHA-256 of all numbers, hex.
func (c *Checkpoint) sum() string {
	h := sha256.New()
	for _, b := range c.Theta {
		h.Write(b.bytes())
	}
	return hex.EncodeToString(h.Sum(nil))
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
	// Format and version first: the rest of a foreign file may not fit the struct.
	var head Checkpoint
	if err := json.Unmarshal(text, &struct {
		Format  *string `json:"format"`
		Version *int    `json:"version"`
	}{&head.Format, &head.Version}); err != nil {
		return nil, bad("%s", notJSON(text, err))
	}
	if head.Format != checkpointFormat || head.Version != checkpointVersion {
		// The program that wrote it, where the file names it, helps the user.
		_ = json.Unmarshal(text, &struct {
			Trained *Trained `json:"trained"`
		}{&head.Trained})
		return nil, bad("%s", head.wrong())
	}
	c := &Checkpoint{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, bad("%s", notJSON(text, err))
	}
	if what := c.wrong(); what != "" {
		return nil, bad("%s", what)
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
