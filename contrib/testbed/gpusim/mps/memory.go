package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Server and clients meet in memory that the server shares under /dev/shm: a client with a /dev/shm of its own finds no
// server (NVIDIA's k8s-device-plugin, issue 647).
const sharedMemory = "/dev/shm"

// segment is the name of a server's shared memory, as strace shows the real one's: cuda.shm.UID.PID.N.
func segment(uid string, server int) string {
	return filepath.Join(sharedMemory, fmt.Sprintf("cuda.shm.%s.%x.1", uid, server))
}

// shareMemory makes a server's shared memory; unshare removes it.
func shareMemory(server int) (unshare func(), err error) {
	name := segment(fmt.Sprintf("%x", os.Getuid()), server)
	// Clients of other users map it where one server serves them all.
	if err := os.WriteFile(name, nil, 0o666); err != nil {
		return nil, fmt.Errorf("share memory: %w", err)
	}
	return func() { _ = os.Remove(name) }, nil
}

// sharesMemory reports whether a client sees the memory of a server, unless that has just ended.
func sharesMemory(server int) bool {
	found, _ := filepath.Glob(segment("*", server))
	return len(found) > 0 || errors.Is(unix.Kill(server, 0), unix.ESRCH)
}

// forget removes what a server has left that was killed.
func forget(server int) {
	found, _ := filepath.Glob(segment("*", server))
	for _, name := range found {
		_ = os.Remove(name)
	}
}
