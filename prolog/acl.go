package prolog

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// onlyFor restricts a folder to root and one user. The folder stays root's: root's daemons write
// there, and its owner could redirect them with links. It uses an access control list; if the file
// system has none, or can't keep it, the folder stays open to all.
func onlyFor(dir string, uid uint32) error {
	const (
		everything, look   = 7, 5 // rwx, r-x
		owner, named       = 0x01, 0x02
		group, mask, other = 0x04, 0x10, 0x20
		nobody             = 0xffffffff
	)
	// linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry, in order.
	list := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{owner, everything, nobody}, {named, look, uid}, {group, 0, nobody}, {mask, look, nobody}, {other, 0, nobody}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.perm)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	err := unix.Setxattr(dir, "system.posix_acl_access", list, 0)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "set access of", Path: dir, Err: err}
	}
	return nil
}
