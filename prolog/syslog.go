package prolog

import (
	"io"
	"net"
	"strings"
	"time"
)

// Syslog is where a hook's troubles go: its own output is Slurm's. It doesn't wait
// for a log that hangs, and says nothing where there is none.
func Syslog(message string) {
	conn, err := net.Dial("unixgram", "/dev/log")
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	// <28> is facility daemon, severity warning.
	_, _ = io.WriteString(conn, "<28>slurmbridge-hook: "+strings.ReplaceAll(message, "\n", "; "))
}
