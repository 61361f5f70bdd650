package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Dir is the folder of the site's own networks. The process that holds its lock writes it.
type Dir string

const (
	mostBytes = 256 << 20 // of a file that is read
	mostKept  = 100       // results of rounds
)

// Current is the file of the network that decides. There is none until a round found one that is
// better than the built-in network.
func (d Dir) Current() string { return filepath.Join(string(d), "network.json") }

// Previous is the file of the network that decided before.
func (d Dir) Previous() string { return filepath.Join(string(d), "network.previous.json") }

func (d Dir) results() string { return filepath.Join(string(d), "rounds.json") }

// Load reads the current or the previous network's file, or nil if there is none. Errors wrap ErrUnusable.
func Load(path string, aim policy.Objective) (*dqn.Checkpoint, error) {
	text, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		var c *dqn.Checkpoint
		if c, err = dqn.Read(bytes.NewReader(text), path); err == nil && c.Objective == aim {
			return c, nil
		}
		if err == nil {
			err = fmt.Errorf("%s: it was trained for the %s, and the objective is the %s", path, c.Objective, aim)
		}
	}
	return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
}

// read returns a regular file's content.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > mostBytes {
		return nil, fmt.Errorf("%s: it is no regular file of up to %d bytes", path, mostBytes)
	}
	return io.ReadAll(io.LimitReader(f, mostBytes))
}

// Stamp changes whenever another network becomes the current one, or its file can be read at last.
func (d Dir) Stamp() string {
	var st unix.Stat_t
	if unix.Lstat(d.Current(), &st) != nil {
		return ""
	}
	return fmt.Sprint(st.Ino, st.Ctim)
}

// Name is what the current network is called: by the time at which a round made it.
func (d Dir) Name() string {
	info, err := os.Lstat(d.Current())
	if err != nil {
		return ""
	}
	return "site " + info.ModTime().UTC().Format("2006-01-02T15:04:05Z")
}

// Replace makes a network the current one, without the optimiser's state, since each round starts afresh. It keeps the
// one before.
func (d Dir) Replace(c *dqn.Checkpoint) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	// A link leaves the current one in place; without one the built-in network decides.
	next := d.Previous() + ".new"
	_ = os.Remove(next) // of a process that was killed here
	if err := os.Link(d.Current(), next); err == nil {
		err = os.Rename(next, d.Previous())
		if err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.write(d.Current(), text)
}

// Return makes the previous network, or without one the built-in network, the current one again.
func (d Dir) Return() error {
	err := os.Rename(d.Previous(), d.Current())
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(d.Current())
	}
	return err
}

// Results returns what rounds did, oldest first, up to the last 100.
func (d Dir) Results() ([]Result, error) {
	text, err := read(d.results())
	if errors.Is(err, fs.ErrNotExist) {
		return []Result{}, nil
	}
	out := []Result{}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return []Result{}, fmt.Errorf("read %s: %w", d.results(), err)
	}
	return out, nil
}

// Add keeps a round's result. A file that can't be read is replaced.
func (d Dir) Add(r *Result) error {
	all, _ := d.Results() //nolint:errcheck // a damaged file is replaced
	all = append(all, *r)
	text, err := json.MarshalIndent(all[max(0, len(all)-mostKept):], "", "\t")
	if err != nil {
		return err
	}
	return d.write(d.results(), text)
}

func (d Dir) write(path string, text []byte) error {
	return renameio.WriteFile(path, text, 0o600, renameio.WithStaticPermissions(0o600), renameio.WithTempDir(string(d)))
}

// Lock makes the folder, for its owner alone, and keeps other retrainings out until the file is
// closed, which the system does for a process that dies. It returns ErrBusy if another process
// has the lock.
func (d Dir) Lock() (io.Closer, error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(string(d), "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrBusy
		}
		return nil, fmt.Errorf("networks' lock: %w", err)
	}
	return f, nil
}
