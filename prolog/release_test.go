package prolog

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A daemon that was told to quit and says yes has a moment to be gone; one that lies
// is killed, and that is told.
func TestDaemonThatIsJustEnding(t *testing.T) {
	control := filepath.Join(t.TempDir(), "control")
	if err := os.WriteFile(control, []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := &MPS{Dir: Dir(t.TempDir()), Control: control}
	for _, c := range []struct{ lasts, want string }{{"0.2", ""}, {"100", "did not end by itself, 1 of its processes were killed"}} {
		if err := os.MkdirAll(m.Pipe(0), 0o755); err != nil {
			t.Fatal(err)
		}
		daemon := exec.Command("sleep", c.lasts)
		daemon.Args[0] = controlName
		daemon.Env = m.environ(0)
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- daemon.Wait() }()
		begin := time.Now()
		err := m.Release(t.Context(), 0)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s s: %v", c.lasts, err)
		}
		if took := time.Since(begin); took > 90*time.Second {
			t.Errorf("%s s: took %v", c.lasts, took)
		}
		if err := <-done; (err == nil) != (c.want == "") {
			t.Errorf("%s s: ended with %v", c.lasts, err)
		}
		if _, err := os.Stat(m.Pipe(0)); !os.IsNotExist(err) {
			t.Error("the pipe directory is left", err)
		}
	}
}
