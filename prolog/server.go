package prolog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// Server is the last known state of a GPU's MPS server. Hooks and agent write it under the GPU's lock; task prologs
// read it as the job's user.
type Server struct {
	PID     int    `json:"pid,omitempty"`     // 0 = none
	Started uint64 `json:"started,omitempty"` // ticks since the boot
	// Fault is when the server was first seen to refuse clients because one client had faulted (on Volta and later it
	// refuses until all clients have ended); zero = it takes clients.
	Fault time.Time `json:"fault,omitzero"`
	// Full: the server had as many clients as the card allows.
	Full bool `json:"full,omitempty"`
	// Log and ServerLog are the offsets, in bytes, up to which the daemon's and the server's log were read.
	Log       int64 `json:"log,omitempty"`
	ServerLog int64 `json:"server_log,omitempty"`
}

// Takes reports whether the server accepts a new client. If not, the GPU is not shared through MPS until the server is
// renewed or has room.
func (s Server) Takes() bool { return s.Fault.IsZero() && !s.Full }

// Server returns the last known state of the GPU's MPS server, zero if there is none.
func (d Dir) Server(gpu int) Server { return kept[Server](d.gpu(gpu, serverFile)) }

// inspect compares the GPU's server with its last known state, without querying the daemon. lost: the server has
// faulted or ended since, and its clients have lost their work. by lists the pids that the server blames, if its log
// names any. gone: the daemon no longer lists the server. The caller holds the GPU's lock and stores the result.
//
// The cause of a server's end doesn't matter: servers end by themselves only on request, without clients. The daemon
// doesn't know the cause either: it logs "exited with status 0" for a server that a signal has killed.
func (m *MPS) inspect(gpu int, gone bool) (s Server, lost bool, by []int) {
	s = m.Dir.Server(gpu)
	var log, said string
	log, s.Log = m.readLog(gpu, controlLog, s.Log)
	said, s.ServerLog = m.readLog(gpu, serverLog, s.ServerLog)
	if s.PID != 0 && (gone || started(m.Proc, s.PID) != s.Started) {
		s.PID, s.Started, lost = 0, 0, true
	}
	by = faultsIn(said)
	// The control daemon logs this line when a client's fault reaches its server, before Volta.
	return s, lost || strings.Contains(log, "encountered a fatal exception") || len(by) > 0, by
}

// faulted matches the line that names the client whose kernel faulted: "Client process 4711 encountered a fatal GPU
// error." in libcuda 535 to 555, "{PID: 4711, Context ID: 0}" for the client in 580. libcuda 470 logs no such line.
var faulted = pattern.Lazy(`\] Client (?:process )?\{?(?:PID: )?(\d+)\b.*encountered a fatal GPU error`)

// faultsIn returns the pids of the clients that faulted by a server's log.
func faultsIn(log string) (pids []int) {
	for _, m := range faulted().FindAllStringSubmatch(log, -1) {
		if pid, err := strconv.Atoi(m[1]); err == nil && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Bounds of an MPS log: each connection of a user adds a line, and the folder may be in memory.
const (
	mostLog = 4 << 20
	keptLog = 256 << 10
)

// BoundLogs frees the space of long MPS logs except for their last part. A log's size, and so the hooks' offsets into
// it, stay. A log on a file system without hole punching (NFS, say) is truncated instead.
func (d Dir) BoundLogs() error {
	var errs []error
	logs, _ := filepath.Glob(d.path("mps", "gpu*", "log*", "*.log"))
	for _, path := range logs {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Sys().(*syscall.Stat_t).Blocks*512 < mostLog {
			continue
		}
		log, err := os.OpenFile(filepath.Clean(path), os.O_WRONLY|syscall.O_NOFOLLOW, 0)
		if err != nil {
			errs = append(errs, ignoreMissing(err))
			continue
		}
		err = unix.Fallocate(int(log.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, info.Size()-keptLog)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			err = log.Truncate(0)
		}
		errs = append(errs, err, log.Close())
	}
	return errors.Join(errs...)
}

// ask completes s by querying the daemon: the server's pid, whether it takes clients, and whether it has room. most is
// the card's limit of clients, 0 = unknown.
func (m *MPS) ask(ctx context.Context, gpu int, s Server, most int, now time.Time) (Server, error) {
	list, err := m.servers(ctx, gpu)
	if err != nil {
		return s, err
	}
	if len(list) == 0 {
		return Server{Log: s.Log, ServerLog: s.ServerLog}, nil
	}
	pid := list[len(list)-1]
	if slices.Contains(list, s.PID) {
		pid = s.PID // both it and its successor are there for a moment
	}
	// A daemon that doesn't know the command says so, or fails.
	status, err := m.question(ctx, gpu, fmt.Sprintf("get_server_status %d", pid))
	if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return s, err
	}
	if pid != s.PID {
		s = Server{PID: pid, Started: started(m.Proc, pid), Log: s.Log, ServerLog: s.ServerLog}
	}
	switch {
	case strings.Contains(status, "ACTIVE"):
		s.Fault = time.Time{}
	case strings.Contains(status, "FAULT") && s.Fault.IsZero():
		s.Fault = now
	}
	s.Full = false
	unasked := strings.HasPrefix(status, "Unknown command") && !s.Fault.IsZero()
	if most > 0 || unasked {
		clients, err := m.question(ctx, gpu, fmt.Sprintf("get_client_list %d", pid))
		if err != nil {
			return s, err
		}
		n := len(strings.Fields(clients))
		s.Full = most > 0 && n >= most
		if unasked && n == 0 {
			s.Fault = time.Time{} // it forgets a fault with the last client
		}
	}
	return s, nil
}

// endClients ends clients that outlived their job, because their part of the GPU now belongs to other jobs. A kernel in
// flight of a killed client harms the other clients, so daemons that can (driver 535 on) end its work first.
func (m *MPS) endClients(ctx context.Context, gpu int, left []int, still func(pid int) bool) error {
	if len(left) == 0 {
		return nil // as nearly always: no query
	}
	servers, err := m.servers(ctx, gpu)
	if err != nil {
		return err
	}
	var ended []string
	for _, server := range servers {
		list, err := m.question(ctx, gpu, fmt.Sprintf("get_client_list %d", server))
		if err != nil {
			return err
		}
		for _, word := range strings.Fields(list) {
			pid, err := strconv.Atoi(word)
			if err != nil || !slices.Contains(left, pid) {
				continue
			}
			// If the daemon doesn't know the command or fails, the client is killed anyway.
			_, _ = m.question(ctx, gpu, fmt.Sprintf("terminate_client %d %d", server, pid))
			if killIf(pid, func() bool { return still(pid) }) {
				ended = append(ended, word)
			}
		}
	}
	if len(ended) > 0 {
		return fmt.Errorf("MPS clients that had outlived their job were ended: processes %s", strings.Join(ended, ", "))
	}
	return nil
}

// victims marks the job files of jobs whose MPS server was lost by a fault of the processes by, if known. Its error
// names the jobs; it is nil if there are none.
func (d Dir) victims(jobs []*JobFile, now time.Time, by []int) error {
	var names []string
	err := d.change(jobs, func(j *JobFile) bool {
		if !j.MPS || !j.MPSFault.IsZero() {
			return false
		}
		j.MPSFault = now
		j.MPSFaultBy = by
		names = append(names, strconv.FormatInt(j.JobID, 10))
		return true
	})
	if len(names) > 0 {
		err = errors.Join(fmt.Errorf("the MPS server was lost under jobs %s", strings.Join(names, ", ")), err)
	}
	return err
}

// errInitialises: the server exists and takes clients later. Until then the daemon keeps clients waiting ("Server is
// not ready, push client to pending list", control.log). Without persistence mode the driver initialises the GPU for
// the server, which takes from seconds to half a minute.
var errInitialises = errors.New("it still initialises, and processes wait for it")

// serves reports whether the user's server, started by Ensure, takes clients. An error means that the server failed.
// The caller holds the GPU's lock.
func (m *MPS) serves(ctx context.Context, gpu int, uid uint32) (bool, error) {
	list, err := m.servers(ctx, gpu)
	if err != nil {
		return false, err
	}
	if len(list) == 0 {
		log, _ := m.readLog(gpu, serverLog, 0)
		last := strings.TrimSpace(log[strings.LastIndexByte(strings.TrimSpace(log), '\n')+1:])
		return false, fmt.Errorf("it has ended: %.200s", cmp.Or(last, "without a word"))
	}
	for _, pid := range list {
		if owner(m.Proc, pid) == int64(uid) { // other uids: the last user's server, which ends
			return m.ready(ctx, gpu, pid)
		}
	}
	return false, nil
}

// servers returns the pids of the daemon's servers, including those that still initialise.
func (m *MPS) servers(ctx context.Context, gpu int) (pids []int, err error) {
	out, err := m.question(ctx, gpu, "get_server_list")
	if err != nil {
		return nil, err
	}
	for _, word := range strings.Fields(out) {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("the MPS daemon's servers are %.64q", out)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// ready reports whether a server takes clients. An error means that it failed. Daemons before 550 don't know the query,
// but log it. A separate thread writes the log after the answer: if the query isn't in the log yet, earlier lines may
// be missing too. If the query is there and the server's start isn't, the log was truncated.
func (m *MPS) ready(ctx context.Context, gpu, pid int) (bool, error) {
	status, err := m.question(ctx, gpu, fmt.Sprintf("get_server_status %d", pid))
	if err != nil {
		return false, err
	}
	switch strings.TrimSpace(status) {
	case "ACTIVE":
		return true, nil
	case "INITIALIZING":
		return false, nil
	case "FAULT":
		return false, errors.New("it has faulted")
	}
	if !strings.HasPrefix(status, "Unknown command") {
		return false, nil // it has just ended
	}
	log, _ := m.readLog(gpu, controlLog, 0)
	asked := strings.Contains(log, fmt.Sprintf("get_server_status %d\n", pid))
	starts := strings.Contains(log, fmt.Sprintf("Starting new server %d for", pid))
	return asked && !starts || strings.Contains(log, fmt.Sprintf("NEW SERVER %d: Ready", pid)), nil
}
