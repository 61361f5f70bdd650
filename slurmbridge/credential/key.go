package credential

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// Key proves with a key that nodes and controller have in a file (see ReadKeys). A reader of that
// file can pose as any user, so only root and SlurmUser may read it.
//
// The file is read for each credential, so that a key can be changed while daemons run: the first
// key in it signs, and each is believed.
type Key struct {
	File string
	Now  func() time.Time
	// Since is when this process began to remember credentials, by its monotonic clock: it believes none that was made
	// before.
	Since time.Time

	once once
}

// NewKey returns the method of a key file.
func NewKey(file string) *Key {
	return &Key{File: file, Now: time.Now, Since: time.Now()}
}

// Header names a key's credentials.
func (k *Key) Header() string { return "Slurmbridge-Credential" }

// Hint says what to do about an error.
func (k *Key) Hint(err error) string {
	return hint(err, "look at the file that key_file names (slurmbridge doctor does on the controller)",
		"does the file that key_file names differ between sender and controller?")
}

// A credential is "KEY1:" and, with colons between them, the user's number, the time in ms
// since 1970, a nonce, the payload, and the HMAC-SHA256 of all that.
var keyShape = pattern.Lazy(`^KEY1:(\d{1,10}):(\d{1,15}):[0-9a-f]{32}:([A-Za-z0-9_-]*):([0-9a-f]{64})$`)

func sign(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// Encode makes a credential.
func (k *Key) Encode(_ context.Context, payload string) (string, error) {
	if len(payload) > MaxPayload {
		return "", fmt.Errorf("%w: a payload of %d bytes", ErrDown, len(payload))
	}
	keys, err := ReadKeys(k.File)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrDown, err)
	}
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	text := fmt.Sprintf("KEY1:%d:%d:%x:%s:", os.Geteuid(), k.Now().UnixMilli(), nonce,
		base64.RawURLEncoding.EncodeToString([]byte(payload)))
	return text + hex.EncodeToString(sign(keys[0], text)), nil
}

// Decode checks a credential.
func (k *Key) Decode(_ context.Context, cred string) (*Credential, error) {
	if len(cred) > 4*MaxPayload {
		return nil, ErrInvalid
	}
	part := keyShape().FindStringSubmatch(cred)
	if part == nil {
		return nil, ErrInvalid
	}
	keys, err := ReadKeys(k.File)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDown, err)
	}
	var got [sha256.Size]byte
	if _, err := hex.Decode(got[:], []byte(part[4])); err != nil {
		return nil, ErrInvalid
	}
	text, good := cred[:len(cred)-2*sha256.Size], 0
	for _, key := range keys { // all of them, in constant time
		good |= subtle.ConstantTimeCompare(got[:], sign(key, text))
	}
	if good != 1 {
		return nil, ErrInvalid
	}
	uid, err1 := strconv.ParseUint(part[1], 10, 32)
	ms, err2 := strconv.ParseInt(part[2], 10, 64)
	payload, err3 := base64.RawURLEncoding.Strict().DecodeString(part[3])
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, ErrInvalid
	}
	c := &Credential{UID: uint32(uid), Encoded: time.UnixMilli(ms), Decoded: k.Now(), Payload: string(payload)}
	remembers := time.Since(k.Since) + time.Millisecond // a credential states its time in these
	if err = k.once.admit(got, c, remembers); err != nil && !errors.Is(err, ErrExpired) {
		return nil, err
	}
	return c, err
}

// Bounds of a key file.
const (
	leastKey    = 32 // bytes
	mostKeys    = 8
	mostKeyFile = 64 << 10 // bytes
)

// parseKeys reads a key file's text: a key a line, base64 of 32 random bytes or more; lines
// that begin with # say nothing. Its errors don't repeat what may be a key.
func parseKeys(text []byte) ([][]byte, error) {
	var keys [][]byte
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.Strict().DecodeString(string(line))
		switch {
		case err != nil:
			return nil, fmt.Errorf("line %d is no key: base64 of 32 random bytes (head -c 32 /dev/urandom | base64)", n)
		case len(key) < leastKey:
			return nil, fmt.Errorf("the key in line %d has %d bytes, it takes %d", n, len(key), leastKey)
		case len(slices.Compact(slices.Sorted(slices.Values(key)))) < 8: // of 32 random bytes 30 differ
			return nil, fmt.Errorf("the key in line %d isn't random", n)
		case len(keys) == mostKeys:
			return nil, fmt.Errorf("more than %d keys", mostKeys)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key in it")
	}
	return keys, nil
}

// ReadKeys reads the keys of a file for this process's user, and refuses a file that another user
// could read or replace. An error names the file and what to do.
func ReadKeys(file string) ([][]byte, error) {
	return ReadKeysAs(file, uint32(os.Geteuid()), uint32(os.Getegid()))
}

// ReadKeysAs is ReadKeys for a user of these ids: what that user could not read, or should
// not believe, is an error, too.
func ReadKeysAs(file string, uid, gid uint32) ([][]byte, error) {
	// Without O_NONBLOCK a FIFO in its place would keep us for ever.
	f, err := os.OpenFile(filepath.Clean(file), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := private(file, info, uid, gid); err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{filepath.Dir(file), filepath.Dir(real)} {
		if err := folderIsSafe(dir, uid); err != nil {
			return nil, fmt.Errorf("other users could replace %s: %w", file, err)
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, mostKeyFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > mostKeyFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", file, mostKeyFile)
	}
	keys, err := parseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return keys, nil
}

// private says what is wrong with a key file's owner and mode: it must belong to root or to its
// reader, and only the owner may read it; a group may if it is the reader's own, or root's.
func private(file string, info fs.FileInfo, uid, gid uint32) error {
	st, mode := info.Sys().(*syscall.Stat_t), info.Mode().Perm()
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no file", file)
	case st.Uid != 0 && st.Uid != uid:
		return fmt.Errorf("%s belongs to user %d, neither root nor its reader: chown %d it", file, st.Uid, uid)
	case mode&0o007 != 0:
		return fmt.Errorf("%s has mode %04o, and so all users have the key: make a new one, and chmod 0600 it", file, mode)
	case mode&0o030 != 0:
		return fmt.Errorf("%s has mode %04o, and its group may change it: chmod 0600 it", file, mode)
	case mode&0o040 != 0 && st.Gid != 0 && st.Gid != gid:
		return fmt.Errorf("%s has mode %04o, and group %d, which isn't its reader's, has the key: chmod 0600 it", file, mode,
			st.Gid)
	case uid != 0 && !(st.Uid == uid && mode&0o400 != 0) && !(st.Gid == gid && mode&0o040 != 0):
		return fmt.Errorf("%s can't be read by user %d: chown %d it", file, uid, uid)
	}
	return nil
}

// folderIsSafe says why users other than root and a reader may put files into a folder.
func folderIsSafe(dir string, uid uint32) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	switch st, mode := info.Sys().(*syscall.Stat_t), info.Mode(); {
	case st.Uid != 0 && st.Uid != uid:
		return fmt.Errorf("%s belongs to user %d: chown root it", dir, st.Uid)
	case mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0:
		return fmt.Errorf("%s has mode %04o: chmod go-w it", dir, mode.Perm())
	}
	return nil
}
