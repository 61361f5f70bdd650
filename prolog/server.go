package prolog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Server is a GPU's MPS server as it was last seen. Hooks and agent write it under
// the GPU's lock; task prologs read it as the job's user.
type Server struct {
	PID     int    `json:"pid,omitempty"`     // 0 = none
	Started uint64 `json:"started,omitempty"` // ticks since the boot
	// Fault is since when the server takes no new clients, since one of those it has
	// faulted (Volta and later: until all of them have ended); zero = it does.
	Fault time.Time `json:"fault,omitzero"`
	// Full: it had as many clients as the card allows.
	Full bool `json:"full,omitempty"`
	// Log is how much of the daemon's log was read, bytes.
	Log int64 `json:"log,omitempty"`
}

// Takes reports whether a new client would be served: otherwise the GPU is left out
// of sharing by MPS until the server is renewed or has room.
func (s Server) Takes() bool { return s.Fault.IsZero() && !s.Full }

func (d Dir) serverFile(gpu int) string { return filepath.Join(d.gpu(gpu), "server.json") }

// Server returns what was last seen of a GPU's MPS server; nothing of one that has
// none.
func (d Dir) Server(gpu int) Server {
	var s Server
	if readJSON(d.serverFile(gpu), &s) != nil {
		return Server{}
	}
	return s
}

func (d Dir) keepServer(gpu int, s Server) error {
	if err := putJSON(d.serverFile(gpu), s, 0o644); err != nil {
		return fmt.Errorf("gpu %d: %w", gpu, err)
	}
	return nil
}

// userFile names the user of the GPU's MPS server, if the server serves one user only.
func (d Dir) userFile(gpu int) string { return filepath.Join(d.gpu(gpu), "user") }

// serverUser returns the user that the server serves; false: it isn't known, or the server serves
// all users.
func (d Dir) serverUser(gpu int) (uid uint32, ok bool) {
	body, err := os.ReadFile(d.userFile(gpu))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(body)), 10, 32)
	return uint32(n), err == nil
}

func (d Dir) keepServerUser(gpu int, uid uint32) error {
	if err := put(d.userFile(gpu), []byte(strconv.FormatUint(uint64(uid), 10)), 0o644); err != nil {
		return fmt.Errorf("gpu %d: %w", gpu, err)
	}
	return nil
}

// inspect compares the GPU's server with what was last seen of it, without a query.
// It reports whether the server has faulted or died since: its clients have lost their
// work. gone says that the daemon doesn't know it any more. The caller holds the GPU's
// lock and keeps what is returned.
func (m *MPS) inspect(gpu int, gone bool) (s Server, lost bool) {
	s = m.Dir.Server(gpu)
	read := s.Log
	var log string
	log, s.Log = m.readLog(gpu, read)
	if s.PID != 0 && (gone || started(m.Proc, s.PID) != s.Started) {
		// The daemon writes down how it ended: in a moment, if that has only just been.
		word := fmt.Sprintf("Server %d exited with status ", s.PID)
		for until := time.Now().Add(ending); !strings.Contains(log, word) && time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
			log, s.Log = m.readLog(gpu, read)
		}
		// A server that ends on request, or makes room for another user's, exits with 0.
		lost = !strings.Contains(log, word+"0")
		s.PID, s.Started = 0, 0
	}
	// What the control daemon logs when a client's fault reaches its server.
	return s, lost || strings.Contains(log, "encountered a fatal exception")
}

// readLog returns what was added to the daemon's log beyond the first n bytes, 64 KiB
// at most, and how long it is now.
func (m *MPS) readLog(gpu int, n int64) (string, int64) {
	f, err := os.Open(filepath.Join(m.log(gpu), "control.log"))
	if err != nil {
		return "", 0
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return "", 0
	}
	size := info.Size()
	if size < n {
		n = 0 // another log
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(n, size-64<<10), size))
	if err != nil {
		return "", n
	}
	return string(text), size
}

// ask completes s with the daemon's answers about its server: its pid, whether it takes
// clients, and whether it has room. most is the card's limit, 0 = not known.
func (m *MPS) ask(ctx context.Context, gpu int, s Server, most int, now time.Time) (Server, error) {
	out, err := m.question(ctx, gpu, "get_server_list")
	if err != nil {
		return s, err
	}
	list := strings.Fields(out)
	if len(list) == 0 {
		return Server{Log: s.Log}, nil
	}
	word := list[len(list)-1]
	if known := strconv.Itoa(s.PID); slices.Contains(list, known) {
		word = known // both it and its successor are there for a moment
	}
	pid, err := strconv.Atoi(word)
	if err != nil || pid <= 0 {
		return s, fmt.Errorf("gpu %d: the MPS daemon's servers are %.64q", gpu, out)
	}
	// A daemon that is too old to know the command says so, or fails.
	status, err := m.question(ctx, gpu, fmt.Sprintf("get_server_status %d", pid))
	if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return s, err
	}
	if pid != s.PID {
		s = Server{PID: pid, Started: started(m.Proc, pid), Log: s.Log}
	}
	switch faulted := strings.Contains(status, "FAULT"); {
	case !faulted:
		s.Fault = time.Time{}
	case s.Fault.IsZero():
		s.Fault = now
	}
	s.Full = false
	if most > 0 {
		clients, err := m.question(ctx, gpu, fmt.Sprintf("get_client_list %d", pid))
		if err != nil {
			return s, err
		}
		s.Full = len(strings.Fields(clients)) >= most
	}
	return s, nil
}

// victims marks the job files of the jobs that shared the GPU through its MPS server,
// which was lost. Its error names them, and is nil if there are none.
func (d Dir) victims(jobs []*Job, now time.Time) error {
	var names []string
	err := d.change(jobs, func(j *Job) bool {
		if !j.MPS || !j.MPSFault.IsZero() {
			return false
		}
		j.MPSFault = now
		names = append(names, strconv.FormatInt(j.JobID, 10))
		return true
	})
	if len(names) > 0 {
		err = errors.Join(fmt.Errorf("the MPS server was lost under jobs %s", strings.Join(names, ", ")), err)
	}
	return err
}
