package wake

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func TestWhateverIsWrittenWakes(t *testing.T) {
	defer goleak.VerifyNone(t)
	path := t.TempDir() + "//wake" // as an admin may write it
	ctx, cancel := context.WithCancel(context.Background())
	woken := make(chan struct{}, 1000)
	done := make(chan error, 1)
	go func() { done <- File(ctx, path, func() { woken <- struct{}{} }) }()
	wait := func(what string) {
		t.Helper()
		select {
		case <-woken:
		case err := <-done:
			t.Fatalf("%s: ended: %v", what, err)
		case <-time.After(5 * time.Minute):
			t.Fatalf("%s: not woken", what)
		}
	}
	wait("the file is made")
	add := func(s string) {
		t.Helper()
		f := must.Get(os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o660))(t)
		defer f.Close()
		must.Get(f.WriteString(s))(t)
	}
	add("submit 1\n")
	wait("a line")
	must.OK(t, os.Rename(path, path+".1"))
	add("submit 2\n")
	wait("a line in a new file")
	add(strings.Repeat("x", limit+1))
	wait("a large file")
	for i := range 30000 {
		if info, err := os.Stat(path); err == nil && info.Size() == 0 {
			break
		}
		if i == 29999 {
			t.Error("a file over the limit was not emptied")
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	must.Is(t, <-done, context.Canceled, "ended with")
}

func TestFileCantBeMade(t *testing.T) {
	must.Fail(t, File(context.Background(), "/proc/none/wake", func() {}), "")
}
