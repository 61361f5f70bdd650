package credential

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// Token proves users by Slurm's own tokens, as Slurm's commands do if AuthType is auth/slurm: one
// of its daemons on the user's machine (sackd, slurmd or slurmctld) gets the user at the other end
// of its socket from the kernel, and signs; one on the controller checks the signature.
//
// The token is valid for no request to Slurm: in those, their request's hash is in the place of the
// payload. The socket's protocol is that of src/common/sack_api.c from 23.11 to 26.05.
type Token struct {
	// Sockets are tried in turn. Default: Slurm's own.
	Sockets []string
	Now     func() time.Time
	// Since is as in Key.
	Since time.Time

	once once
}

// NewToken returns the method.
func NewToken() *Token { return &Token{Now: time.Now, Since: time.Now()} }

// Header names Slurm's tokens.
func (t *Token) Header() string { return "Slurm-Credential" }

// Hint says what to do about an error.
func (t *Token) Hint(err error) string {
	return hint(err, "with AuthType=auth/slurm one of sackd, slurmd and slurmctld runs on each machine, without "+
		"disable_sack in AuthInfo",
		"does slurm.key differ between this machine and the controller?")
}

// The protocol's numbers.
const (
	tokenVersion = 45 << 8 // 26.05's; up to there no release looks at it
	tokenCreate  = 64001
	tokenVerify  = 64002
	tokenAnybody = 1<<32 - 1 // may check it
	mostToken    = 64 << 10  // bytes
)

// sockets are the sockets of Slurm's daemons, in the order in which its commands try them.
func (t *Token) sockets() []string {
	if t.Sockets != nil {
		return t.Sockets
	}
	if one := os.Getenv("SLURM_SACK_SOCKET"); one != "" {
		return []string{one}
	}
	return []string{"/run/slurm/sack.socket", "/run/slurmctld/sack.socket"}
}

// call sends a request to the first daemon that is there; read reads its answer.
func (t *Token) call(ctx context.Context, request uint32, body []byte, read func(r io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var errs []error
	for _, path := range t.sockets() {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer conn.Close()
		end, _ := ctx.Deadline()
		if err := conn.SetDeadline(end); err != nil {
			return err
		}
		msg := binary.BigEndian.AppendUint16(nil, tokenVersion)
		msg = binary.BigEndian.AppendUint32(msg, uint32(4+4+len(body))) // of all but the version
		msg = binary.BigEndian.AppendUint32(msg, request)
		if _, err := conn.Write(append(msg, body...)); err != nil {
			return err
		}
		return read(conn)
	}
	return errors.Join(errs...)
}

// Encode requests a token from Slurm.
func (t *Token) Encode(ctx context.Context, payload string) (string, error) {
	// Two tokens of one second would be the same without it.
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	data := hex.EncodeToString(nonce[:]) + " " + payload
	if len(data) > MaxPayload {
		return "", fmt.Errorf("%w: a payload of %d bytes", ErrDown, len(data))
	}
	body := binary.BigEndian.AppendUint32(nil, tokenAnybody)
	body = binary.BigEndian.AppendUint32(body, uint32(len(data)))
	var token string
	err := t.call(ctx, tokenCreate, append(body, data...), func(r io.Reader) error {
		var n uint32
		if err := binary.Read(r, binary.BigEndian, &n); err != nil {
			return err
		}
		if n > mostToken {
			return fmt.Errorf("a token of %d bytes", n)
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(r, text); err != nil {
			return err
		}
		token = string(bytes.TrimRight(text, "\x00"))
		return nil
	})
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: Slurm makes no token: %w", ErrDown, err)
	case !tokenShape().MatchString(token):
		return "", fmt.Errorf("%w: Slurm's token makes no sense", ErrDown)
	}
	return token, nil
}

// tokenShape is a JSON Web Token's.
var tokenShape = pattern.Lazy(`^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$`)

// Decode checks a token. Its content is believed only after Slurm has checked the signature.
func (t *Token) Decode(ctx context.Context, cred string) (*Credential, error) {
	if len(cred) > 4*MaxPayload || !tokenShape().MatchString(cred) {
		return nil, ErrInvalid
	}
	signed := cred[:strings.LastIndexByte(cred, '.')]
	c, expires, err := parseClaims(signed)
	if err != nil {
		return nil, err
	}
	if c.Decoded = t.Now(); c.Behind().Abs() > window || c.Decoded.After(expires.Add(time.Second)) {
		return c, c.skewed() // Slurm only says no
	}
	body := binary.BigEndian.AppendUint32(nil, uint32(len(cred)+1))
	body = append(append(body, cred...), 0)
	answer := uint32(1)
	err = t.call(ctx, tokenVerify, body, func(r io.Reader) error {
		err := binary.Read(r, binary.BigEndian, &answer)
		if errors.Is(err, io.EOF) {
			return nil // newer releases say no by closing
		}
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: Slurm checks no token: %w", ErrDown, err)
	case answer != 0:
		return nil, ErrInvalid
	}
	remembers := time.Since(t.Since) + time.Second // a token states its time in these
	if err := t.once.admit(sha256.Sum256([]byte(signed)), c, remembers); err != nil {
		return nil, err
	}
	return c, nil
}

func parseClaims(signed string) (c *Credential, expires time.Time, err error) {
	_, text, _ := strings.Cut(signed, ".")
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, expires, ErrInvalid
	}
	var claims struct {
		UID     *uint32 `json:"uid"`
		IAT     int64   `json:"iat"`
		EXP     int64   `json:"exp"`
		Context string  `json:"context"`
		Payload []byte  `json:"payload"`
		ID      struct {
			Name string `json:"name"`
		} `json:"id"` // with use_client_ids
	}
	// "sack" is what the sockets sign; daemons' own and jobs' credentials are none of ours.
	if err := json.Unmarshal(raw, &claims); err != nil || claims.UID == nil || claims.Context != "sack" {
		return nil, expires, ErrInvalid
	}
	nonce, payload, ok := strings.Cut(string(claims.Payload), " ")
	if !ok || len(nonce) != 32 {
		return nil, expires, ErrInvalid
	}
	return &Credential{UID: *claims.UID, User: claims.ID.Name, Encoded: time.Unix(claims.IAT, 0), Payload: payload},
		time.Unix(claims.EXP, 0), nil
}
