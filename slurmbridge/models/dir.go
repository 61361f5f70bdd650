package models

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Dir is the folder with the models' files. A file's name is the SHA-256 of what is
// in it: one that was damaged, or put there by another program, is found out at once.
type Dir string

// mostBytes bounds what is read of a file.
const mostBytes = 256 << 20

const (
	checkpointExt = ".json"
	mixExt        = ".mix.gz"
)

// own matches what Put wrote, whole or half.
var own = regexp.MustCompile(`^\.?[0-9a-f]{64}\.(json|mix\.gz)[0-9]*$`)

// Make makes the folder, for its owner alone.
func (d Dir) Make() error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("models' folder: %w", err)
	}
	return nil
}

// Path is where the checkpoint of that SHA-256 lies.
func (d Dir) Path(sum string) string { return filepath.Join(string(d), sum+checkpointExt) }

// MixPath is where the mix of that SHA-256 lies.
func (d Dir) MixPath(sum string) string { return filepath.Join(string(d), sum+mixExt) }

// put writes a file, whole or not at all, and returns its SHA-256.
func (d Dir) put(text []byte, ext string) (string, error) {
	raw := sha256.Sum256(text)
	sum := hex.EncodeToString(raw[:])
	if err := renameio.WriteFile(filepath.Join(string(d), sum+ext), text, 0o600, renameio.WithStaticPermissions(0o600), renameio.WithTempDir(string(d))); err != nil {
		return "", fmt.Errorf("write model: %w", err)
	}
	return sum, nil
}

// get reads a file and checks that it is what it was. Errors wrap ErrUnusable.
func (d Dir) get(sum, ext string) ([]byte, error) {
	path := filepath.Join(string(d), sum+ext)
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %w", ErrUnusable, path, fmt.Errorf(format, args...))
	}
	if !own.MatchString(sum + ext) {
		return nil, bad("that is no SHA-256")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, bad("%w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, bad("it is no regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, mostBytes+1))
	switch raw := sha256.Sum256(text); {
	case err != nil:
		return nil, bad("%w", err)
	case len(text) > mostBytes:
		return nil, bad("it is larger than %d bytes", mostBytes)
	case hex.EncodeToString(raw[:]) != sum:
		return nil, bad("its SHA-256 is another than its name says: it was damaged or replaced")
	}
	return text, nil
}

// PutCheckpoint keeps a network and returns its SHA-256.
func (d Dir) PutCheckpoint(c *dqn.Checkpoint) (string, error) {
	text, err := Encode(c)
	if err != nil {
		return "", err
	}
	return d.put(text, checkpointExt)
}

// Text reads a network's file. Errors wrap ErrUnusable.
func (d Dir) Text(sum string) ([]byte, error) { return d.get(sum, checkpointExt) }

// Checkpoint reads a network. Errors wrap ErrUnusable.
func (d Dir) Checkpoint(sum string) (*dqn.Checkpoint, error) {
	text, err := d.Text(sum)
	if err != nil {
		return nil, err
	}
	c, err := dqn.Read(bytes.NewReader(text), d.Path(sum))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return c, nil
}

// CheckpointFor reads a network that was trained for an objective. Errors wrap ErrUnusable.
func (d Dir) CheckpointFor(aim policy.Objective, sum string) (*dqn.Checkpoint, error) {
	c, err := d.Checkpoint(sum)
	if err == nil && c.Objective != aim {
		return nil, fmt.Errorf("%w: %s: it was trained for the %s, and the objective is the %s", ErrUnusable, d.Path(sum), c.Objective, aim)
	}
	return c, err
}

// PutMix keeps a mix and returns its SHA-256.
func (d Dir) PutMix(m *Mix) (string, error) {
	text, err := m.Encode()
	if err != nil {
		return "", err
	}
	return d.put(text, mixExt)
}

// Mix reads a mix. Errors wrap ErrUnusable.
func (d Dir) Mix(sum string) (*Mix, error) {
	text, err := d.get(sum, mixExt)
	if err != nil {
		return nil, err
	}
	m, err := DecodeMix(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnusable, d.MixPath(sum), err)
	}
	return m, nil
}

// Sweep removes the files of this package that keep doesn't name by their SHA-256:
// those of models that are not wanted any more, and what a retraining that was
// killed has left. What others put there stays.
func (d Dir) Sweep(keep map[string]bool) error {
	files, err := os.ReadDir(string(d))
	if err != nil {
		return fmt.Errorf("tidy models: %w", err)
	}
	var errs []error
	for _, f := range files {
		name := f.Name()
		if !own.MatchString(name) || f.IsDir() || name[0] != '.' && keep[name[:64]] && (name[64:] == checkpointExt || name[64:] == mixExt) {
			continue
		}
		if err := os.Remove(filepath.Join(string(d), name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("tidy models: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Lock keeps other retrainings off until the file is closed; the system does that
// for a process that dies. Returns ErrBusy where another process has it.
func (d Dir) Lock() (io.Closer, error) {
	f, err := os.OpenFile(filepath.Join(string(d), "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("models' lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrBusy
		}
		return nil, fmt.Errorf("models' lock: %w", err)
	}
	return f, nil
}
