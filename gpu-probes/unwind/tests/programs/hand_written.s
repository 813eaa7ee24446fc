# Frames that no compiler writes.
#
# hand_written(callback, _): calls `realigns` from three depths. Its frames look the same in all:
# address and rsp are equal, and where the earlier caller's return address was, the word is still
# there. Only rbx, from which the frame is found, tells them apart.
        .text
        .globl  hand_written
        .type   hand_written, @function
hand_written:
        .cfi_startproc
        push    %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbp, 0
        mov     %rsp, %rbp
        .cfi_def_cfa_register rbp
        call    realigns
        sub     $32, %rsp
        call    realigns
        sub     $160, %rsp
        call    realigns
        mov     %rbp, %rsp
        call    realigns
        pop     %rbp
        .cfi_def_cfa rsp, 8
        .cfi_restore rbp
        ret
        .cfi_endproc
        .size   hand_written, .-hand_written

# Its frame is found from rbx.
        .type   realigns, @function
realigns:
        .cfi_startproc
        push    %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbx, 0
        push    %rdi
        .cfi_adjust_cfa_offset 8
        mov     %rsp, %rbx
        .cfi_def_cfa_register rbx
        sub     $1024, %rsp
        and     $-4096, %rsp
        call    pushes
        mov     %rbx, %rsp
        .cfi_def_cfa_register rsp
        pop     %rdi
        .cfi_adjust_cfa_offset -8
        pop     %rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbx
        ret
        .cfi_endproc
        .size   realigns, .-realigns

# A stack pointer that moves by pushes, registers that hold something else meanwhile.
        .type   pushes, @function
pushes:
        .cfi_startproc
        push    %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbx, 0
        push    %r15
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r15, 0
        xor     %ebx, %ebx
        mov     $0x1234, %r15
        push    %rdi
        .cfi_adjust_cfa_offset 8
        call    *%rdi
        mov     (%rsp), %rdi
        sub     $32, %rsp
        .cfi_adjust_cfa_offset 32
        call    *%rdi
        add     $40, %rsp
        .cfi_adjust_cfa_offset -40
        pop     %r15
        .cfi_adjust_cfa_offset -8
        .cfi_restore r15
        pop     %rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbx
        ret
        .cfi_endproc
        .size   pushes, .-pushes
        .section .note.GNU-stack,"",@progbits
