package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// Munge runs munge and unmunge. A credential is that of the process's user, and munged lets each through once.
type Munge struct {
	Socket string // "" = munge's own default
	// Bin is the folder of munge and unmunge, "" = the PATH.
	Bin string
}

// Header names MUNGE's credentials.
func (m *Munge) Header() string { return "Munge-Credential" }

// Hint says what to do about an error.
func (m *Munge) Hint(err error) string {
	return hint(err, "systemctl status munge",
		"does /etc/munge/munge.key differ between sender and controller, or was munged not restarted since it changed?")
}

// program finds one of MUNGE's; a hook's PATH may be empty.
func (m *Munge) program(name string) string {
	if m.Bin != "" {
		return m.Bin + "/" + name
	}
	for _, dir := range []string{"/usr/bin/", "/usr/local/bin/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name
		}
	}
	return name
}

// patience is how long a program of MUNGE may take to end, and then its answer to be read.
const patience = 10 * time.Second

func (m *Munge) run(ctx context.Context, prog, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if m.Socket != "" {
		args = append(args, "--socket="+m.Socket)
	}
	cmd := exec.CommandContext(ctx, m.program(prog), args...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	cmd.WaitDelay = patience // on a busy machine the program may have ended long before its answer is read
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %.200s", prog, err, strings.TrimSpace(stderr.String()))
	}
	return out.String(), nil
}

// Encode makes a credential.
func (m *Munge) Encode(ctx context.Context, payload string) (string, error) {
	out, err := m.run(ctx, "munge", payload)
	if err != nil {
		return "", fmt.Errorf("%w: munged does not answer: %w", ErrDown, err)
	}
	cred := strings.TrimSpace(out)
	if !shape().MatchString(cred) {
		return "", fmt.Errorf("%w: munge's answer makes no sense", ErrDown)
	}
	return cred, nil
}

// shape is what munge prints; nothing else is handed to unmunge.
var shape = pattern.Lazy(`^MUNGE:[A-Za-z0-9+/=]+:$`)

// Munge's error numbers (munge.h), with which unmunge also ends.
const (
	statusSnafu    = 1
	statusNoMemory = 5
	statusSocket   = 6
	statusTimeout  = 7
	statusExpired  = 15
	statusRewound  = 16
	statusReplayed = 17
)

// Decode checks a credential.
func (m *Munge) Decode(ctx context.Context, cred string) (*Credential, error) {
	if len(cred) > 4*MaxPayload || !shape().MatchString(cred) {
		return nil, ErrInvalid
	}
	// Without the host's name: its look-up can be slow.
	out, err := m.run(ctx, "unmunge", cred, "--keys=STATUS,ENCODE_TIME,DECODE_TIME,UID")
	c, status := parse(out)
	var exit *exec.ExitError
	if status < 0 && errors.As(err, &exit) {
		status = exit.ExitCode()
	}
	switch status {
	case 0:
		if err == nil && c != nil {
			return c, nil
		}
		err = errors.Join(err, errors.New("unmunge's answer makes no sense"))
	case statusExpired, statusRewound:
		if c == nil {
			return nil, ErrExpired
		}
		return c, c.skewed()
	case statusReplayed:
		return nil, ErrReplayed
	case -1, statusSnafu, statusNoMemory, statusSocket, statusTimeout:
		// It says nothing about the credential.
	default:
		return nil, ErrInvalid
	}
	return nil, fmt.Errorf("%w: munged does not answer: %w", ErrDown, err)
}

// field is a line of unmunge's output.
var field = pattern.Lazy(`(?m)^(STATUS|UID|ENCODE_TIME|DECODE_TIME):.*\(([^()\n]*)\)\s*$`)

// parse reads unmunge's output: lines "NAME: text (number)", an empty line, the
// payload. status is -1 where none is given.
func parse(out string) (*Credential, int) {
	head, payload, _ := strings.Cut(out, "\n\n")
	c := &Credential{Payload: payload}
	status, uid := -1, false
	for _, f := range field().FindAllStringSubmatch(head, -1) {
		n, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			continue
		}
		switch f[1] {
		case "STATUS":
			status = int(n)
		case "UID":
			c.UID, uid = uint32(n), n >= 0 && n <= 1<<32-1
		case "ENCODE_TIME":
			c.Encoded = time.Unix(n, 0)
		case "DECODE_TIME":
			c.Decoded = time.Unix(n, 0)
		}
	}
	if !uid {
		return nil, status
	}
	return c, status
}
