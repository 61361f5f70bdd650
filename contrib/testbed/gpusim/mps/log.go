package mps

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// logger writes MPS's log lines. Without a file it writes nothing.
type logger struct {
	f    *os.File
	name string
	now  func() time.Time
	self string
}

func newLog(f *os.File, name string) *logger {
	if f != nil {
		unix.CloseOnExec(int(f.Fd()))
	}
	return &logger{f: f, name: name, now: time.Now, self: strconv.Itoa(os.Getpid())}
}

// openLog opens a log file of the daemon's; nil where that can't be done.
func openLog(dir, name string) *os.File {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil
	}
	return f
}

func (l *logger) printf(format string, args ...any) {
	if l.f == nil {
		return
	}
	at := l.now().Format("2006-01-02 15:04:05.000")
	fmt.Fprintf(l.f, "[%s %s %5s] %s\n", at, l.name, l.self, fmt.Sprintf(format, args...))
}

func (l *logger) close() {
	if l.f != nil {
		_ = l.f.Close()
	}
}
