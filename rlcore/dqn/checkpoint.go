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
	"math/rand/v2"
	"os"

	"github.com/google/renameio/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// ErrCheckpoint marks a checkpoint that can't be used. The message names the file, what is wrong and what to do.
var ErrCheckpoint = errors.New("unusable checkpoint")

const (
	checkpointFormat  = "slurmbridge-dqn"
	checkpointVersion = 1
	// mostHidden and mostBytes bound what a file can make the program allocate: with so many units it takes 180 MB.
	mostHidden = 4096
	mostBytes  = 1 << 28
)

// Checkpoint is a trained network in a file.
type Checkpoint struct {
	Format  string `json:"format"`  // "slurmbridge-dqn"
	Version int    `json:"version"` // of this form
	// M is the window that the network was trained with.
	M int `json:"m"`
	// Objective is what it was trained for.
	Objective policy.Objective `json:"objective"`
	Hidden    int              `json:"hidden"`   // units per layer
	Features  int              `json:"features"` // encoder.Version of the inputs
	// Kappa and Shown are κ and how many combinations are described.
	Kappa float64 `json:"kappa"`
	Shown int     `json:"shown"`

	// Theta are blocks as in Scorer.Params: float64 bits as 8 bytes each, little endian, which is exact and easy to read
	// in any language.
	Theta   [][]byte `json:"theta"`
	SHA256  string   `json:"sha256"` // of Theta, in order; hex
	Trained Trained  `json:"trained"`
}

// Trained is where a network comes from.
type Trained struct {
	Seed      uint64  `json:"seed"`
	Rounds    int     `json:"rounds"` // done
	Scenario  string  `json:"scenario"`
	Check     float64 `json:"check"`      // best validation: as RoundStats.Check
	BestRound int     `json:"best_round"` // its round; 0 = before learning
	CreatedBy string  `json:"created_by"` // program and version
}

// FromTrainer returns what t has trained as a checkpoint. scenario names what it was trained on, createdBy the program.
func FromTrainer(t *Trainer, scenario, createdBy string) *Checkpoint {
	o := t.Options.orDefaults()
	c := &Checkpoint{
		Format: checkpointFormat, Version: checkpointVersion, M: o.M, Objective: t.Net.Objective(),
		Hidden: t.Net.value.Sizes[1], Features: encoder.Version, Kappa: t.Net.kappa, Shown: t.Net.Enc.Max,
		Trained: Trained{o.Seed, len(t.Curve), scenario, t.Best, t.BestRound, createdBy},
	}
	for _, block := range t.Net.Params() {
		var b []byte
		for _, v := range block.Theta {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
		}
		c.Theta = append(c.Theta, b)
	}
	c.SHA256 = c.sum()
	return c
}

// sum is the SHA-256 of all numbers, hex.
func (c *Checkpoint) sum() string {
	sum := sha256.Sum256(bytes.Join(c.Theta, nil))
	return hex.EncodeToString(sum[:])
}

// Network rebuilds the network, which observes with p. Errors wrap ErrCheckpoint.
func (c *Checkpoint) Network(p rlcore.Predictor) (*Scorer, error) {
	bad := func(format string, args ...any) (*Scorer, error) {
		return nil, fmt.Errorf("%w: %s; train it again", ErrCheckpoint, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Format != checkpointFormat || c.Version != checkpointVersion:
		return bad("its format is %q, version %d, not %q, version %d (written by %q): name a file that `slurmbridge lab train` "+
			"of this version wrote", c.Format, c.Version, checkpointFormat, checkpointVersion, c.Trained.CreatedBy)
	case c.Features != encoder.Version:
		return bad("it was trained on feature set %d, this program has %d", c.Features, encoder.Version)
	case c.Objective != policy.Turnaround && c.Objective != policy.Makespan:
		return bad("its objective is %q", c.Objective)
	case c.M < 1 || c.M > rlcore.MaxWindow:
		return bad("m is %d, not 1 to %d", c.M, rlcore.MaxWindow)
	case c.Hidden < 1 || c.Hidden > mostHidden:
		return bad("hidden is %d, not 1 to %d", c.Hidden, mostHidden)
	case !(c.Kappa >= 0 && c.Kappa <= 1e6) || c.Shown < 0:
		return bad("kappa is %v, shown %d", c.Kappa, c.Shown)
	case c.SHA256 != c.sum():
		return bad("its numbers' SHA-256 is %.12s…, not %.12s… as it says: the file was damaged; copy it again", c.sum(),
			c.SHA256)
	}
	s := NewScorer(c.Objective, c.Hidden, p, rand.New(rand.NewPCG(0, 0))) // what it draws is overwritten
	s.kappa, s.Enc.Max = c.Kappa, c.Shown
	blocks := s.Params()
	if len(c.Theta) != len(blocks) {
		return bad("theta has %d blocks, not %d", len(c.Theta), len(blocks))
	}
	for i, block := range blocks {
		if len(c.Theta[i]) != 8*len(block.Theta) {
			return bad("theta[%d] has %d bytes, the network %d numbers of 8", i, len(c.Theta[i]), len(block.Theta))
		}
		for k := range block.Theta {
			v := math.Float64frombits(binary.LittleEndian.Uint64(c.Theta[i][8*k:]))
			if math.IsNaN(v) || math.Abs(v) > math.MaxFloat32 {
				return bad("theta[%d][%d] is %v: that training failed, with too high a rate", i, k, v)
			}
			block.Theta[k] = float32(v)
		}
	}
	return s, nil
}

// Save writes the checkpoint to a world-readable file, atomically. Errors wrap
// ErrCheckpoint where the checkpoint couldn't be read again, else the system's.
func Save(path string, c *Checkpoint) error {
	text, err := json.MarshalIndent(c, "", " ")
	if err == nil {
		_, err = c.Network(nil)
	}
	if err == nil {
		err = renameio.WriteFile(path, append(text, '\n'), 0o644, renameio.WithStaticPermissions(0o644))
	}
	if err != nil {
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
	text, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	c := &Checkpoint{}
	if err == nil {
		err = c.parse(text)
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint %s: %w", name, err)
	}
	return c, nil
}

func (c *Checkpoint) parse(text []byte) error {
	if len(text) > mostBytes {
		return fmt.Errorf("%w: it is larger than %d bytes; name a file that `slurmbridge lab train` wrote", ErrCheckpoint,
			mostBytes)
	}
	var other *json.UnmarshalTypeError
	err := json.Unmarshal(text, c)
	if err != nil && !errors.As(err, &other) {
		return fmt.Errorf("%w: it isn't JSON, or not whole, after %d bytes: %w; name a file that `slurmbridge lab train` wrote, "+
			"or copy it again", ErrCheckpoint, len(text), err)
	}
	if _, wrong := c.Network(nil); wrong != nil { // a foreign file's format says more than a field that doesn't fit
		return wrong
	}
	if err != nil {
		return fmt.Errorf("%w: %w; train it again", ErrCheckpoint, err)
	}
	return nil
}
