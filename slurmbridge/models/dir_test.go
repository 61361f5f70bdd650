package models

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Files are whole, their owner's alone, and told from any other by their name.
func TestDir(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "a", "models"))
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(string(d)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v", info.Mode(), err)
	}
	sum, err := d.PutCheckpoint(builtIn(t))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(d.Path(sum)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	c, err := d.Checkpoint(sum)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text(t, c), text(t, builtIn(t))) {
		t.Error("another network came back")
	}
	good, err := os.ReadFile(d.Path(sum))
	if err != nil {
		t.Fatal(err)
	}
	// Sound, but not what its name says.
	other := text(t, spoil(t, builtIn(t)))
	for name, spoilt := range map[string]func() error{
		"gone":    func() error { return nil },
		"empty":   func() error { return os.WriteFile(d.Path(sum), nil, 0o600) },
		"cut":     func() error { return os.WriteFile(d.Path(sum), good[:len(good)/2], 0o600) },
		"one bit": func() error { return os.WriteFile(d.Path(sum), append([]byte{good[0] ^ 1}, good[1:]...), 0o600) },
		"foreign": func() error { return os.WriteFile(d.Path(sum), other, 0o600) },
		"link":    func() error { return os.Symlink("/etc/passwd", d.Path(sum)) },
		"folder":  func() error { return os.Mkdir(d.Path(sum), 0o700) },
		"pipe":    func() error { return unix.Mkfifo(d.Path(sum), 0o600) },
		"unreadable": func() error {
			if os.Geteuid() == 0 {
				return nil // nothing is
			}
			return os.WriteFile(d.Path(sum), good, 0)
		},
	} {
		if err := os.RemoveAll(d.Path(sum)); err != nil {
			t.Fatal(err)
		}
		if err := spoilt(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Checkpoint(sum); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), d.Path(sum)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "../../../etc/passwd", strings.Repeat("g", 64), sum + "/"} {
		if _, err := d.Checkpoint(name); !errors.Is(err, ErrUnusable) {
			t.Errorf("%q: %v", name, err)
		}
	}
	// A mix's file is no network, and the reverse.
	junk, err := d.put([]byte("{}"), checkpointExt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Checkpoint(junk); !errors.Is(err, ErrUnusable) {
		t.Errorf("{} is a network: %v", err)
	}
	if junk, err = d.put([]byte("{}"), mixExt); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Mix(junk); !errors.Is(err, ErrUnusable) {
		t.Errorf("{} is a mix: %v", err)
	}
}

// What nobody names goes, with what was half written; what is somebody else's stays.
func TestSweep(t *testing.T) {
	d := Dir(t.TempDir())
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	stay := []string{a + ".json", a + ".mix.gz", "lock", "README", b + ".txt", "x" + b + ".json"}
	leave := []string{b + ".json", b + ".mix.gz", "." + a + ".json4711", "." + b + ".mix.gz1"}
	for _, f := range append(stay, leave...) {
		if err := os.WriteFile(filepath.Join(string(d), f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Sweep(map[string]bool{a: true}); err != nil {
		t.Fatal(err)
	}
	for _, f := range stay {
		if _, err := os.Stat(filepath.Join(string(d), f)); err != nil {
			t.Error(err)
		}
	}
	for _, f := range leave {
		if _, err := os.Stat(filepath.Join(string(d), f)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s stayed: %v", f, err)
		}
	}
	if err := Dir(filepath.Join(string(d), "none")).Sweep(nil); err == nil {
		t.Error("no folder, and no error")
	}
}

func TestLock(t *testing.T) {
	d := Dir(t.TempDir())
	first, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("a second lock: %v", err)
	}
	first.Close()
	second, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}
